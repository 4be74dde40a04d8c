#!/bin/bash
# Runs in the VM: lvsd in front of the kernel's tunnel devices, the kernel's IPVS in front of our decapsulator, and the tier, whose
# programs this kernel's verifier must take.
# Prints a line "ok ..." or "FAIL ..." for each cell; status 1 if one failed or none ran.
#
#   client 10.9.0.1, director 10.9.0.2, server 10.9.0.3 (fd09::1, ::2, ::3) on one bridge; VIP 10.9.0.100, fd09::100.
#   Behind the director's eth1 (10.10.0.2, fd10::2) a server for NAT: inner 10.10.0.3, fd10::3.
set -uo pipefail
cd "$(dirname "$0")"
bytes=300000
failed=0 passed=0

declare -A vip=([4]=10.9.0.100 [6]=fd09::100) rip=([4]=10.9.0.3 [6]=fd09::3) nat=([4]=10.10.0.3 [6]=fd10::3)

wait_for() { # SECONDS COMMAND...
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do ((SECONDS < end)) || return 1; sleep 0.1; done
}

lab() {
    local k n
    ip link add name br0 type bridge && ip link set br0 up
    k=0
    for n in client director server; do
        k=$((k + 1))
        ip netns add $n
        ip link add "$n" type veth peer name eth0 netns $n
        ip link set "$n" master br0 up
        ip -n $n link set lo up
        ip -n $n address add 10.9.0.$k/24 dev eth0
        ip -n $n address add fd09::$k/64 dev eth0 nodad
        ip -n $n link set eth0 up
    done
    ip -n director address add "${vip[4]}/32" dev eth0
    ip -n director address add "${vip[6]}/128" dev eth0 nodad preferred_lft 0
    ip netns exec director sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
    ip netns exec server sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 \
        net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0
    ip -n server address add "${vip[4]}/32" dev lo
    ip -n server address add "${vip[6]}/128" dev lo nodad preferred_lft 0
    ip netns add inner
    ip link add eth1 netns director type veth peer name eth0 netns inner
    ip -n inner link set lo up
    link_of_inner director eth1 2 && link_of_inner inner eth0 3
    ip -n inner route add default via 10.10.0.2
    ip -n inner route add default via fd10::2
    for n in server inner; do
        ip netns exec $n python3 peer.py serve >$n.log 2>&1 &
        wait_for 120 grep -q listening $n.log || { echo "FAIL $n does not start"; cat $n.log; exit 1; }
    done
}

link_of_inner() { # NAMESPACE DEVICE NUMBER
    ip -n "$1" address add "10.10.0.$3/24" dev "$2"
    ip -n "$1" address add "fd10::$3/64" dev "$2" nodad
    ip -n "$1" link set "$2" up
}

# The server's end: DEVICE is a kernel's tunnel device, or decap.
far_end() { # DEVICE
    local dev=$1 args=()
    case $dev in
    ipip) args=(type ipip local "${rip[4]}") ;;
    sit) args=(type sit local "${rip[4]}" remote any) ;;
    ip6tnl) args=(type ip6tnl mode any local "${rip[6]}" remote ::) ;;
    gre) args=(type gre local "${rip[4]}") ;;
    gre-csum) args=(type gre local "${rip[4]}" icsum) ;;
    ip6gre) args=(type ip6gre local "${rip[6]}") ;;
    ip6gre-csum) args=(type ip6gre local "${rip[6]}" icsum) ;;
    decap) ip netns exec server ./lvsctl realserver decap --dev eth0; return ;;
    esac
    ip -n server link add tun "${args[@]}" && ip -n server link set tun up &&
        ip netns exec server sysctl -qw net.ipv4.conf.tun.rp_filter=0
}

far_end_off() { # DEVICE
    if [[ $1 == decap ]]; then
        ip netns exec server ./lvsctl realserver decap --dev eth0 --off
    else
        ip -n server link del tun
    fi
}

# Packets that the tunnel device has taken. (The decapsulator has no count, and needs none: the kernel's IPVS wraps every packet,
# and nothing else on the server could unwrap it.)
carried() { # DEVICE
    [[ $1 == decap ]] || ip netns exec server cat /sys/class/net/tun/statistics/rx_packets
}

cell() { # TOOL FAMILY-OF-SERVICE FAMILY-OF-SERVER DEVICE OPTION...
    local tool=$1 service=$2 server=$3 dev=$4 what out v r
    shift 4
    what="$tool: IPv$service in IPv$server, ${*:---tun-type ipip} -> $dev"
    v=${vip[$service]} r=${rip[$server]}
    [[ $service == 6 ]] && v="[$v]"
    [[ $server == 6 ]] && r="[$r]"
    if ! out=$(far_end "$dev" 2>&1 &&
        $tool -A -t "$v:80" -s rr 2>&1 && $tool -a -t "$v:80" -r "$r:80" -i "$@" 2>&1 &&
        ip netns exec client python3 peer.py ask "${vip[$service]}" $bytes 3 2>&1); then
        failed=$((failed + 1))
        echo "FAIL $what"
        sed 's/^/     /' <<<"$out"
        $tool -L -n --stats | sed 's/^/     /'
        ip -n server -s link show tun 2>/dev/null | sed 's/^/     /'
        [[ $tool == lvsctl ]] && lvsctl status | grep -v ' 0$' | sed 's/^/     /'
    elif [[ $(carried "$dev") == 0 ]]; then
        failed=$((failed + 1))
        echo "FAIL $what: answered, but not through the tunnel"
    else
        passed=$((passed + 1))
        echo "ok   $what"
    fi
    $tool -D -t "$v:80"
    far_end_off "$dev"
}

answers() { # PID: lvsd answers, or has ended (and then the first cell fails)
    lvsctl -L -n || ! kill -0 "$1"
}
lvsctl() { ip netns exec director ./lvsctl --socket /run/lvsd.sock "$@"; }
ipvs() { ip netns exec director ipvsadm "$@"; }

lvsd=
start() { # DATAPATH INTERFACE...: lvsd, with its process in $lvsd
    local path=$1 dev args=()
    shift
    for dev in "$@"; do args+=(--interface "$dev"); done
    ip netns exec director ./lvsd --socket /run/lvsd.sock --state-file /run/lvsd.state --datapath "$path" "${args[@]}" \
        --max-connections 1000 >lvsd.log 2>&1 &
    lvsd=$!
    wait_for 180 answers $lvsd && kill -0 $lvsd || { echo "FAIL lvsd --datapath $path does not start"; cat lvsd.log; exit 1; }
}

stop() {
    kill $lvsd
    wait $lvsd || { echo "FAIL lvsd ended with status $?"; cat lvsd.log; failed=$((failed + 1)); }
}

verdict() { # WHAT COMMAND...: counts a check, whose output says why it failed
    local what=$1 out
    shift
    if out=$("$@" 2>&1); then
        passed=$((passed + 1))
        echo "ok   $what"
    else
        failed=$((failed + 1))
        echo "FAIL $what"
        sed 's/^/     /' <<<"$out"
        { lvsctl -L -n --stats; lvsctl status | grep -v ' 0$'; cat lvsd.log; } 2>&1 | sed 's/^/     /'
    fi
}

counter() { lvsctl status | sed -n "s/^$1 //p"; }

at_least() { # WHAT LEAST VALUE
    (($3 >= $2)) || { echo "$1: $3, not $2 or more"; return 1; }
}

# One service and server by the tier. A connection that is never without a packet in a ring moves to it after 4096 packets only, so
# those of TCP have 6200 or more each way; of UDP there is one at a time, and it moves at once.
by_tier() { # PROTOCOL FAMILY SERVER OPTION...
    local flag=-t least=1000 v=${vip[$2]} r=$3 in out
    [[ $1 == udp ]] && flag=-u least=80
    [[ $v == *:* ]] && v="[$v]"
    [[ $r == *:* ]] && r="[$r]"
    in=$(counter tier_in_pkts) out=$(counter tier_out_pkts)
    lvsctl -C && lvsctl -A $flag "$v:80" -s rr && lvsctl -a $flag "$v:80" -r "$r:80" "${@:4}" || return 1
    if [[ $1 == udp ]]; then
        ip netns exec client python3 peer.py echo "${vip[$2]}" 100
    else
        ip netns exec client python3 peer.py ask "${vip[$2]}" 9000000
    fi || return 1
    at_least tier_in_pkts $least $(($(counter tier_in_pkts) - in)) || return 1
    [[ $4 != -m ]] || at_least tier_out_pkts $least $(($(counter tier_out_pkts) - out)) || return 1
    [[ $(counter tier_failed) == 0 ]] || { echo "tier_failed is $(counter tier_failed)"; return 1; }
}

# The same through a tunnel, to a server whose end of it is DEVICE.
by_tier_tunnel() { # DEVICE PROTOCOL FAMILY SERVER OPTION...
    local status=0
    far_end "$1" && by_tier "${@:2:3}" -i "${@:5}" || status=1
    [[ $(carried "$1") != 0 ]] || { echo "nothing came through the tunnel"; status=1; }
    far_end_off "$1"
    return $status
}

# Filters of ours at an interface's clsact hooks: each a line of hook, name and id.
filters() { # DEVICE
    local hook
    for hook in ingress egress; do
        ip netns exec director tc filter show dev "$1" $hook | sed -n "s/^.* \(lvsd_[a-z_]*\).* id \([0-9]*\).*/$hook \1 \2/p"
    done
}

# The filters of a killed lvsd, which are still there, are gone when the next one is: as many as before, none of them the same.
replaced() { # OLD-FILTERS-OF-ETH0
    local new
    new=$(filters eth0)
    printf 'before:\n%s\nnow:\n%s\n' "$1" "$new"
    [[ $(wc -l <<<"$1") == 2 && $(wc -l <<<"$new") == 2 ]] && ! grep -qxFf <(echo "$1") <<<"$new"
}

# Linux 6.1 has no tcx.
says_clsact() { lvsctl status | grep -q '^eth0 .* clsact '; }

none_left() { ! { filters eth0; filters eth1; ip -n director link show | grep xdp; } | grep .; }

# All that the tier forwards; what goes by a tunnel beside it.
tier_cells() { # DATAPATH
    local service
    for service in 4 6; do
        verdict "tier at $1: IPv$service TCP by NAT" by_tier tcp $service "${nat[$service]}" -m
        verdict "tier at $1: IPv$service UDP by NAT" by_tier udp $service "${nat[$service]}" -m
        verdict "tier at $1: IPv$service TCP by direct routing" by_tier tcp $service "${rip[$service]}" -g
        verdict "tier at $1: IPv$service UDP by direct routing" by_tier udp $service "${rip[$service]}" -g
    done
    for service in tcp udp; do
        verdict "tier: $service, IPv4 in IPv4" by_tier_tunnel ipip $service 4 "${rip[4]}"
        verdict "tier: $service, IPv6 in IPv4" by_tier_tunnel sit $service 6 "${rip[4]}"
        verdict "tier: $service, IPv4 in IPv6" by_tier_tunnel ip6tnl $service 4 "${rip[6]}"
        verdict "tier: $service, IPv6 in IPv6" by_tier_tunnel ip6tnl $service 6 "${rip[6]}"
        verdict "tier: $service, IPv6 in GRE over IPv4" by_tier_tunnel gre $service 6 "${rip[4]}" --tun-type gre
        verdict "tier: $service, IPv4 in GRE over IPv6" by_tier_tunnel ip6gre $service 4 "${rip[6]}" --tun-type gre
    done
    lvsctl -C
    cell lvsctl 4 4 ipip
}

# Instructions that the verifier went through, of each program that lvsd holds: its type (1 socket filter, 3 tc, 6 XDP) and their number.
verified() {
    gawk '/^prog_type/ {type = $2} /^verified_insns/ {print type ":" $2}' /proc/$lvsd/fdinfo/* | sort -u | paste -sd ' '
}

tier() {
    local old
    start tc eth0 eth1
    echo "     tier at tc, instructions verified: $(verified)"
    tier_cells tc
    old=$(filters eth0)
    { kill -9 $lvsd; wait $lvsd; } 2>/dev/null
    verdict "tier: filters of a killed lvsd stay" [ "$(filters eth0)" == "$old" ]
    start tc eth0 eth1
    verdict "tier: ... and the next one replaces them" replaced "$old"
    verdict "tier: ... by clsact filters again" says_clsact
    verdict "tier: ... and forwards" by_tier tcp 4 "${nat[4]}" -m
    stop
    verdict "tier: no filter is left" none_left
}

# In both drivers, and by redirected frames: none of the log's lines may say that one of these is not so.
in_drivers() { lvsctl status | grep -q '^eth0 .* native,' && lvsctl status | grep -q '^eth1 .* native,' && ! grep WARN lvsd.log; }

tier_at_xdp() {
    # a veth takes redirected frames where it does GRO
    ethtool -K director gro on && ip netns exec inner ethtool -K eth0 gro on || { echo "FAIL ethtool"; exit 1; }
    start xdp eth0 eth1
    echo "     tier at xdp, instructions verified: $(verified)"
    verdict "tier at xdp: in the drivers" in_drivers
    tier_cells xdp
    { kill -9 $lvsd; wait $lvsd; } 2>/dev/null
    start xdp eth0 eth1
    verdict "tier at xdp: after a killed lvsd" by_tier tcp 6 "${nat[6]}" -m
    stop
    verdict "tier at xdp: no program is left" none_left
}

ours() {
    start afpacket eth0
    cell lvsctl 4 4 ipip
    cell lvsctl 6 4 sit
    cell lvsctl 4 6 ip6tnl
    cell lvsctl 6 6 ip6tnl
    cell lvsctl 4 4 gre --tun-type gre
    cell lvsctl 6 4 gre --tun-type gre
    cell lvsctl 4 6 ip6gre --tun-type gre
    cell lvsctl 6 6 ip6gre --tun-type gre
    cell lvsctl 4 4 gre-csum --tun-type gre --tun-csum
    cell lvsctl 6 4 gre-csum --tun-type gre --tun-csum
    cell lvsctl 4 6 ip6gre-csum --tun-type gre --tun-csum
    cell lvsctl 6 6 ip6gre-csum --tun-type gre --tun-csum
    stop
}

theirs() {
    # As on a wire: a veth would hand checksums over unfinished, inside the tunnel too.
    ip netns exec client ethtool -K eth0 tx off >/dev/null
    local service server
    for service in 4 6; do
        for server in 4 6; do
            cell ipvs $service $server decap
            cell ipvs $service $server decap --tun-type gre
            cell ipvs $service $server decap --tun-type gre --tun-csum
        done
    done
}

lab
ours
tier
tier_at_xdp
theirs
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
