/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tier at the ingress hook. Partial checksums stay partial and super-packets whole: the kernel's helpers know of both.
 */
#ifndef LVSD_TIER_SKB_H
#define LVSD_TIER_SKB_H

#include <linux/pkt_cls.h>

#include "tier_tunnel.h"

#define PACKET_HOST 0
#define PACKET_OTHERHOST 3

/* Sent to us. The outer tag is no longer in the frame here; its number may be 0, which is none. */
static __always_inline int is_to_us_skb(struct __sk_buff *skb)
{
	if (skb->pkt_type != PACKET_HOST &&
	    (skb->pkt_type != PACKET_OTHERHOST || !is_to_macvlan(skb, FACE_SKB, skb->ifindex)))
		return 0;
	return !skb->vlan_present || !(skb->vlan_tci & 0xfff);
}

__noinline int judge_skb_v4(struct __sk_buff *skb)
{
	struct tier_cpu *cpu = this_cpu();

	return cpu ? judge_flow_v4(skb, FACE_SKB, skb->len, skb->gso_size, &cpu->plan, cpu) : V_NONE;
}

__noinline int judge_skb_v6(struct __sk_buff *skb)
{
	struct tier_cpu *cpu = this_cpu();

	return cpu ? judge_flow_v6(skb, FACE_SKB, skb->len, skb->gso_size, &cpu->plan, cpu) : V_NONE;
}

/* Whatever is not plain. */
__noinline int odd_is_ours_skb(struct __sk_buff *skb)
{
	return is_ours(skb, FACE_SKB);
}

__noinline int odd_goes_up_skb(struct __sk_buff *skb, int v6)
{
	return odd_goes_up(skb, FACE_SKB, v6);
}

/* What becomes of a frame; the plan is this processor's. */
static __always_inline int judge_skb(struct __sk_buff *skb)
{
	int verdict = V_NONE;

	if (!is_to_us_skb(skb))
		return V_OTHERS;
	if (skb->protocol == bpf_htons(0x0800))
		verdict = judge_skb_v4(skb);
	else if (skb->protocol == bpf_htons(0x86dd))
		verdict = judge_skb_v6(skb);
	if (verdict != V_NONE)
		return verdict;
	return odd_is_ours_skb(skb) ? odd_goes_up_skb(skb, skb->protocol == bpf_htons(0x86dd)) : V_OTHERS;
}

/* The frame's first `len` bytes, to be changed; none where they cannot be had. */
static __always_inline void *head_skb(struct __sk_buff *skb, const __u32 len)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (data + len <= end)
		return data;
	if (bpf_skb_pull_data(skb, len))
		return 0;
	data = (void *)(long)skb->data;
	end = (void *)(long)skb->data_end;
	return data + len <= end ? data : 0;
}

static __always_inline int forward_v4_skb(struct __sk_buff *skb, const struct plan *p)
{
	__u32 at = 34 + (p->proto == P_TCP ? 16 : 6), flags = p->proto == P_TCP ? 0 : BPF_F_MARK_MANGLED_0;
	__u8 *frame = head_skb(skb, 42);
	__be32 old_addr = 0, new_addr = 0;
	__be16 old_port = 0, new_port = 0;
	__u32 sum;

	if (!frame)
		return 0;
	put_macs(frame, p);
	sum = (__u16)~be16(frame + 24) + (__u16)~0x0100;
	frame[22]--;
	if (p->nat) {
		new_addr = bpf_htonl(p->addr[1]);
		new_port = bpf_htons(p->port);
		if (p->reply) {
			old_addr = *(__be32 *)(frame + 26);
			old_port = *(__be16 *)(frame + 34);
			*(__be32 *)(frame + 26) = new_addr;
			*(__be16 *)(frame + 34) = new_port;
		} else {
			old_addr = *(__be32 *)(frame + 30);
			old_port = *(__be16 *)(frame + 36);
			*(__be32 *)(frame + 30) = new_addr;
			*(__be16 *)(frame + 36) = new_port;
		}
		sum += halves(~bpf_ntohl(old_addr)) + halves((__u32)p->addr[1]);
	}
	*(__be16 *)(frame + 24) = bpf_htons((__u16)~fold(sum));
	if (!p->nat)
		return 1;
	return !bpf_l4_csum_replace(skb, at, old_addr, new_addr, flags | BPF_F_PSEUDO_HDR | 4) &&
	       !bpf_l4_csum_replace(skb, at, old_port, new_port, flags | 2);
}

static __always_inline int forward_v6_skb(struct __sk_buff *skb, const struct plan *p)
{
	__u32 at = 54 + (p->proto == P_TCP ? 16 : 6), flags = p->proto == P_TCP ? 0 : BPF_F_MARK_MANGLED_0;
	__u8 *frame = head_skb(skb, 62);
	__be64 old[2] = {}, new[2] = {};
	__be16 old_port = 0, new_port = 0;
	__s64 diff;

	if (!frame)
		return 0;
	put_macs(frame, p);
	frame[21]--;
	if (!p->nat)
		return 1;
	new[0] = __builtin_bswap64(p->addr[0]);
	new[1] = __builtin_bswap64(p->addr[1]);
	new_port = bpf_htons(p->port);
	if (p->reply) {
		__builtin_memcpy(old, frame + 22, 16);
		__builtin_memcpy(frame + 22, new, 16);
		old_port = *(__be16 *)(frame + 54);
		*(__be16 *)(frame + 54) = new_port;
	} else {
		__builtin_memcpy(old, frame + 38, 16);
		__builtin_memcpy(frame + 38, new, 16);
		old_port = *(__be16 *)(frame + 56);
		*(__be16 *)(frame + 56) = new_port;
	}
	diff = bpf_csum_diff((__be32 *)old, 16, (__be32 *)new, 16, 0);
	if (diff < 0)
		return 0;
	return !bpf_l4_csum_replace(skb, at, 0, diff, flags | BPF_F_PSEUDO_HDR) &&
	       !bpf_l4_csum_replace(skb, at, old_port, new_port, flags | 2);
}

/*
 * Wraps a frame whose packet has its TTL counted down. The kernel is told what is inside, so that it cuts a super-packet, or completes
 * a checksum, where the device that it leaves by cannot. A segment keeps its size: the judge has seen that it fits.
 */
__noinline int wrap_skb(struct __sk_buff *skb)
{
	struct tier_cpu *cpu = this_cpu();
	struct inner in;
	struct plan *p;
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u8 *frame = head_skb(skb, 34);
	__u32 off;
	__s64 sum;
	__be16 field;

	if (!cpu || !frame)
		return 0;
	p = &cpu->plan;
	read_inner(frame + 14, p->v6, &in);
	if (skb->len > 14 + in.total && bpf_skb_change_tail(skb, 14 + in.total, 0))
		return 0;
	flags |= p->tunnel & TUNNEL_V6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	if (p->tunnel & TUNNEL_GRE)
		flags |= BPF_F_ADJ_ROOM_ENCAP_L4_GRE;
	if (bpf_skb_adjust_room(skb, tunnel_overhead(p->tunnel), BPF_ADJ_ROOM_MAC, flags))
		return 0;
	frame = head_skb(skb, OUTER_MAX);
	if (!frame)
		return 0;
	write_outer(frame, p, &in, cpu);
	if (!(p->tunnel & TUNNEL_SUM))
		return 1;
	off = 14 + outer_ip(p);
	sum = sum_skb(skb, off, in.total + 8);
	if (sum < 0)
		return 0;
	/* added up as it lies in memory */
	field = ~fold64(sum);
	return !bpf_skb_store_bytes(skb, off + 4, &field, 2, 0);
}

/* Does what this processor's plan says. A function of its own, so that the programs' stack is not added to that of others. */
__noinline int forward_skb(struct __sk_buff *skb)
{
	struct tier_cpu *cpu = this_cpu();
	struct plan *p;

	if (!cpu)
		return TC_ACT_SHOT;
	p = &cpu->plan;
	if (!(p->v6 ? forward_v6_skb(skb, p) : forward_v4_skb(skb, p)) || (p->tunnel && !wrap_skb(skb))) {
		failed(p, cpu);
		return TC_ACT_SHOT;
	}
	return send_on(p, cpu);
}

#endif
