/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The faces of the classifier: a socket filter for packet rings, programs at the interface's clsact (or tcx) hooks, and an XDP
 * program for AF_XDP rings; and those of the tier.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "classify.h"
#include "xdp.h"
#include "tier_skb.h"
#include "tier_xdp.h"

/* Sent to us, and ours. */
static __always_inline int is_ours_skb(struct __sk_buff *skb)
{
	return is_to_us_skb(skb) && is_ours(skb, FACE_SKB);
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

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} judges SEC(".maps");

/*
 * Judges for the program at the ingress hook, too, which gets the same frame right after this. Where one daemon hands over to another,
 * both have their sockets for a moment. The later one's filter sees a frame first, and does nothing until it is its turn; the other one's
 * then leaves alone what that has judged (and takes a frame between whose two filters the turn came).
 */
SEC("socket")
int lvsd_tier_judge(struct __sk_buff *skb)
{
	struct tier_cpu *cpu = this_cpu();
	__u32 row = PLANE_TURN;
	struct cache_line *turn = bpf_map_lookup_elem(&plane, &row);
	__u64 whose;
	int verdict;

	if (!cpu || !turn)
		return 0;
	whose = READ64(&turn->w[0]);
	if (whose < generation || (whose > generation && cpu->from == skb->ifindex && cpu->length == skb->len))
		return 0;
	cpu->begin++;
	cpu->alone = 0;
	barrier();
	verdict = judge_skb(skb);
	cpu->plan.verdict = verdict;
	cpu->from = skb->ifindex;
	cpu->length = skb->len;
	return verdict == V_UP ? 0x7fffffff : 0;
}

/*
 * As lvsd_ring, with the tier. A socket's filter may have net.core.optmem_max bytes, which are 20,480 on Linux 6.1; what
 * it jumps to is not counted. Were there nothing to jump to, what is for the ring would be unserved.
 */
SEC("socket")
int lvsd_tier_ring(struct __sk_buff *skb)
{
	if (skb->mark != magic)
		bpf_tail_call_static(skb, &judges, 0);
	return 0;
}

/* As lvsd_ingress, and forwards what is the tier's. Without a ring (no worker is there now) what is for it is dropped. */
SEC("classifier")
int lvsd_tier_ingress(struct __sk_buff *skb)
{
	struct tier_cpu *cpu = this_cpu();
	int verdict, action = TC_ACT_SHOT;

	if (!cpu)
		return TC_ACT_UNSPEC;
	if (skb->mark == magic) {
		skb->mark = 0;
		return TC_ACT_UNSPEC;
	}
	if (cpu->from == skb->ifindex && cpu->length == skb->len) {
		verdict = cpu->plan.verdict;
	} else {
		cpu->alone = 1;
		verdict = judge_skb(skb);
		if (verdict == V_UP)
			cpu->unserved++;
	}
	cpu->from = 0;
	if (verdict == V_OTHERS)
		action = TC_ACT_UNSPEC;
	else if (verdict == V_FORWARD)
		action = forward_skb(skb);
	else if (verdict == V_HELD)
		cpu->held++;
	barrier();
	*(volatile __u64 *)&cpu->end = cpu->begin;
	return action;
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

/*
 * As lvsd_xdp, and forwards what is the tier's. A frame is counted as given to its socket before it is judged: so a worker that has
 * seen as many frames as were counted has seen every frame that was judged before.
 */
SEC("xdp.frags")
int lvsd_tier_xdp(struct xdp_md *ctx)
{
	__u32 index = ctx->ingress_ifindex, queue = ctx->rx_queue_index, place;
	struct port *port = bpf_map_lookup_elem(&ports, &index);
	struct tier_cpu *cpu = this_cpu();
	const __u16 *head = (void *)(long)ctx->data;
	__be16 type;
	__u64 *given;
	int verdict, action;

	if (!port || !cpu || queue >= PORT_QUEUES || (void *)(head + 7) > (void *)(long)ctx->data_end)
		return XDP_PASS;
	type = head[6];
	if ((head[0] != port->mac[0] || head[1] != port->mac[1] || head[2] != port->mac[2]) &&
	    !is_to_macvlan(ctx, FACE_XDP, index))
		return XDP_PASS;
	place = port->first + queue;
	given = bpf_map_lookup_elem(&xsk_given, &place);
	if (!given)
		return XDP_PASS;
	*(volatile __u64 *)given = *given + 1;
	cpu->alone = !bpf_map_lookup_elem(&xsks, &place);
	barrier();
	verdict = judge_xdp(ctx, type);
	if (verdict == V_UP) {
		action = bpf_redirect_map(&xsks, place, XDP_DROP);
		if (action == XDP_REDIRECT)
			return action;
		cpu->unserved++;
	} else if (verdict == V_FORWARD) {
		action = forward_xdp(ctx);
	} else if (verdict == V_OTHERS) {
		action = XDP_PASS;
	} else {
		cpu->held++;
		action = XDP_DROP;
	}
	*(volatile __u64 *)given = *given - 1;
	return action;
}

/* Sends a frame out of the interface that it names itself: whether that takes redirected frames is seen by its counters. */
SEC("xdp.frags")
int lvsd_tier_probe(struct xdp_md *ctx)
{
	__u32 index;

	if (bpf_xdp_load_bytes(ctx, 14, &index, sizeof(index)))
		return XDP_DROP;
	return bpf_redirect(index, 0);
}

char _license[] SEC("license") = "GPL";
