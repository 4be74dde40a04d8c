#!/bin/bash
# Runs in the VM, whose clock counts instructions. Prints a line of JSON for each method and forwarder:
#   {"method", "by", "packets", "arrived", "ns" (instructions from the first frame to the last, by all that runs), "tier"}
# and the same once for the kernel's own routing. Status 1 with a sentence if something does not work.
#
#   generator c0 198.51.100.10 -- d0 198.51.100.1 director d1 10.0.0.1 -- s0 10.0.0.2 sink; VIP 192.0.2.10
set -euo pipefail
cd "$(dirname "$0")"
flows=1000 packets=${PACKETS:-20000} vip=192.0.2.10 server=10.0.0.2
nobody=02:00:00:00:00:99 director_mac=02:00:00:00:00:d0

die() { echo "bench-vm: $*"; exit 1; }
inside() { ip netns exec "$@"; }
wait_for() { # SECONDS COMMAND...
    local end=$((SECONDS + $1)); shift
    until "$@" >/dev/null 2>&1; do ((SECONDS < end)) || return 1; sleep 0.1; done
}

lab() {
    local n
    for n in client director server; do
        ip netns add $n
        ip -n $n link set lo up
    done
    ip -n client link add c0 type veth peer name d0 address $director_mac netns director
    ip -n server link add s0 type veth peer name d1 netns director
    ip -n client address add 198.51.100.10/24 dev c0
    ip -n director address add 198.51.100.1/24 dev d0
    ip -n director address add 10.0.0.1/24 dev d1
    ip -n director address add $vip/32 dev lo
    ip -n server address add $server/24 dev s0
    ip -n client link set c0 up
    ip -n director link set d0 up
    ip -n director link set d1 up
    ip -n server link set s0 up
    inside director sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.d0.rp_filter=0
    inside director ethtool -K d0 gro on >/dev/null
    ip -n director route add 198.18.0.0/15 via 198.51.100.10
    ip -n director neighbour replace $server lladdr $nobody dev d1 nud permanent
    ip -n director neighbour replace 198.51.100.10 lladdr "$(inside client cat /sys/class/net/c0/address)" dev d0 nud permanent
}

generate() { # TO COUNT WORDS...
    local to=$1 count=$2
    shift 2
    inside client ./lvsd-bench generate --interface c0 --dst-mac $director_mac --src-mac 02:00:00:00:00:c0 --dst "$to" --port 53 \
        --flows $flows --count "$count" --seconds 100000 "$@"
}

arrived() { inside server cat /sys/class/net/s0/statistics/rx_packets; }

# One measurement: makes the connections first, and gives a tier time to take them.
measure() { # METHOD BY TO
    local before came out ns tier=null was=0
    generate "$3" $((4 * flows)) --rate 5000 >/dev/null || die "$1 by $2: the generator"
    [[ $2 != lvsd ]] || was=$(counter)
    before=$(arrived)
    out=$(generate "$3" "$packets") || die "$1 by $2: the generator"
    wait_for 100 all_came "$before" || true
    came=$(($(arrived) - before))
    [[ $2 != lvsd ]] || tier=$(($(counter) - was))
    ns=$(sed -n 's/.*"seconds":\([0-9.e-]*\).*/\1/p' <<<"$out" | gawk '{ printf "%.0f", $1 * 1e9 }')
    echo "{\"method\": \"$1\", \"by\": \"$2\", \"packets\": $packets, \"arrived\": $came, \"ns\": $ns, \"tier\": $tier}"
}

all_came() { (($(arrived) - $1 >= packets)); }

lvsctl() { inside director ./lvsctl --socket /run/lvsd.sock "$@"; }
counter() { lvsctl status | sed -n 's/^tier_in_pkts //p'; }

by_lvsd() { # METHOD OPTION
    # not by the function: its process is to be lvsd's
    ip netns exec director ./lvsd --socket /run/lvsd.sock --state-file /run/lvsd.state --datapath tc --interface d0 --interface d1 \
        --workers 1 >lvsd.log 2>&1 &
    local pid=$!
    wait_for 600 lvsctl -L -n || { cat lvsd.log; die "lvsd does not start"; }
    lvsctl -A -u $vip:53 -s rr
    lvsctl -a -u $vip:53 -r $server:53 "$2"
    measure "$1" lvsd $vip
    kill $pid
    wait $pid || { cat lvsd.log; die "lvsd did not end well"; }
    rm -f /run/lvsd.state
}

by_ipvs() { # METHOD OPTION
    inside director ipvsadm -A -u $vip:53 -s rr
    inside director ipvsadm -a -u $vip:53 -r $server:53 "$2"
    measure "$1" ipvs $vip
    inside director ipvsadm -C
}

lab
measure routed ip_forward $server
for each in nat:-m dr:-g tun:-i; do
    by_lvsd "${each%:*}" "${each#*:}"
    by_ipvs "${each%:*}" "${each#*:}"
done
