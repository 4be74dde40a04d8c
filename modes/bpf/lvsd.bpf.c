/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The faces of the classifier: a socket filter for the rings, and two programs at the interface's clsact (or tcx) hooks.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "classify.h"

/* Lets a ring see only what is ours, and nothing that the director itself has put back. */
SEC("socket")
int lvsd_ring(struct __sk_buff *skb)
{
	if (skb->mark == magic || !is_ours(skb))
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
	return is_ours(skb) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Turns a frame that the director wants to put back into the receive path of the interface. */
SEC("classifier")
int lvsd_egress(struct __sk_buff *skb)
{
	if (skb->mark == magic)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	return TC_ACT_UNSPEC;
}

char _license[] SEC("license") = "GPL";
