/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The faces of the classifier: a socket filter for packet rings, programs at the interface's clsact (or tcx) hooks, and an XDP
 * program for AF_XDP rings.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "classify.h"
#include "xdp.h"

#define PACKET_HOST 0
#define PACKET_OTHERHOST 3

/* Sent to us, and ours. The outer tag is no longer in the frame here; its number may be 0, which is none. */
static __always_inline int is_ours_skb(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST &&
	    (skb->pkt_type != PACKET_OTHERHOST || !is_to_macvlan(skb, FACE_SKB, skb->ifindex)))
		return 0;
	if (skb->vlan_present && (skb->vlan_tci & 0xfff))
		return 0;
	return is_ours(skb, FACE_SKB);
}

/* Lets a ring see only what is ours, and nothing that the director itself has put back. */
SEC("socket")
int lvsd_ring(struct __sk_buff *skb)
{
	if (skb->mark == magic || !is_ours_skb(skb))
		return 0;
	return 0x7fffffff;
}

/* Takes from the stack what the ring has got. Programs behind this one still see the rest. */
SEC("classifier")
int lvsd_ingress(struct __sk_buff *skb)
{
	if (skb->mark == magic) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	return is_ours_skb(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* The same for an interface with an XDP program, which has taken what is ours already. */
SEC("classifier")
int lvsd_unmark(struct __sk_buff *skb)
{
	if (skb->mark != magic)
		return TC_ACT_UNSPEC;
	if (is_generic(skb->ifindex))
		to_us_again(skb);
	skb->mark = 0;
	return TC_ACT_UNSPEC;
}

/* Turns a frame that the director wants to put back into the receive path of the interface. */
SEC("classifier")
int lvsd_egress(struct __sk_buff *skb)
{
	if (skb->mark != magic)
		return TC_ACT_UNSPEC;
	if (is_generic(skb->ifindex))
		to_nobody(skb);
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Hands what is ours to the socket of its queue. Ours without a socket is dropped: the stack would answer with a reset. */
SEC("xdp.frags")
int lvsd_xdp(struct xdp_md *ctx)
{
	__u32 index = ctx->ingress_ifindex, queue = ctx->rx_queue_index;
	struct port *port = bpf_map_lookup_elem(&ports, &index);
	__u16 mac[3];

	if (!port || bpf_xdp_load_bytes(ctx, 0, mac, 6))
		return XDP_PASS;
	if ((mac[0] != port->mac[0] || mac[1] != port->mac[1] || mac[2] != port->mac[2]) &&
	    !is_to_macvlan(ctx, FACE_XDP, index))
		return XDP_PASS;
	if (!is_ours(ctx, FACE_XDP))
		return XDP_PASS;
	if (queue >= PORT_QUEUES)
		return XDP_DROP;
	return bpf_redirect_map(&xsks, port->first + queue, XDP_DROP);
}

char _license[] SEC("license") = "GPL";
