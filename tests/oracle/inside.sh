#!/bin/bash
# Runs in the VM: lvsd in front of the kernel's tunnel devices, and the kernel's IPVS in front of our decapsulator.
# Prints a line "ok ..." or "FAIL ..." for each cell; status 1 if one failed or none ran.
#
#   client 10.9.0.1, director 10.9.0.2, server 10.9.0.3 (fd09::1, ::2, ::3) on one bridge; VIP 10.9.0.100, fd09::100.
set -uo pipefail
cd "$(dirname "$0")"
bytes=300000
failed=0 passed=0

declare -A vip=([4]=10.9.0.100 [6]=fd09::100) rip=([4]=10.9.0.3 [6]=fd09::3)

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
    ip netns exec server python3 peer.py serve >server.log 2>&1 &
    wait_for 120 grep -q listening server.log || { echo "FAIL the server does not start"; cat server.log; exit 1; }
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

ours() {
    ip netns exec director ./lvsd --socket /run/lvsd.sock --state-file /run/lvsd.state --datapath afpacket --interface eth0 \
        --max-connections 1000 >lvsd.log 2>&1 &
    local lvsd=$!
    wait_for 180 answers $lvsd || { echo "FAIL lvsd does not start"; cat lvsd.log; exit 1; }
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
    kill $lvsd
    wait $lvsd || { echo "FAIL lvsd ended with status $?"; cat lvsd.log; failed=$((failed + 1)); }
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
theirs
echo "$passed passed, $failed failed"
((failed == 0 && passed > 0))
