/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tier at XDP. Nobody but the frame itself tells here whether its checksum is partial (the sum over the pseudo-header alone), and
 * nobody completes it later: so that is found out, and the checksum made.
 */
#ifndef LVSD_TIER_XDP_H
#define LVSD_TIER_XDP_H

#include "tier_tunnel.h"
#include "xdp.h"

/* How many frames the program has given to each socket, or is about to: the worker that counts as many has seen them all. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, PORTS_MAX * PORT_QUEUES);
	__type(key, __u32);
	__type(value, __u64);
} xsk_given SEC(".maps");

__noinline int judge_xdp_v4(struct xdp_md *xdp)
{
	struct tier_cpu *cpu = this_cpu();

	return cpu ? judge_flow_v4(xdp, FACE_XDP, bpf_xdp_get_buff_len(xdp), 0, &cpu->plan, cpu) : V_NONE;
}

__noinline int judge_xdp_v6(struct xdp_md *xdp)
{
	struct tier_cpu *cpu = this_cpu();

	return cpu ? judge_flow_v6(xdp, FACE_XDP, bpf_xdp_get_buff_len(xdp), 0, &cpu->plan, cpu) : V_NONE;
}

__noinline int odd_is_ours_xdp(struct xdp_md *xdp)
{
	return is_ours(xdp, FACE_XDP);
}

__noinline int odd_goes_up_xdp(struct xdp_md *xdp, int v6)
{
	return odd_goes_up(xdp, FACE_XDP, v6);
}

/* What becomes of a frame that is sent to us; the plan is this processor's. */
static __always_inline int judge_xdp(struct xdp_md *xdp, __be16 type)
{
	int verdict = V_NONE;

	if (type == bpf_htons(0x0800))
		verdict = judge_xdp_v4(xdp);
	else if (type == bpf_htons(0x86dd))
		verdict = judge_xdp_v6(xdp);
	if (verdict != V_NONE)
		return verdict;
	return odd_is_ours_xdp(xdp) ? odd_goes_up_xdp(xdp, type == bpf_htons(0x86dd)) : V_OTHERS;
}

/* What the headers are changed from and to, as one's complement sums. */
struct change {
	__u32 addrs;     /* of both addresses, as they came */
	__u32 old_addr, new_addr;
	__u16 old_port, new_port;
	__u16 checksum;  /* as it came */
	__u16 length;    /* of the transport part */
};

/* The checksum after a change; -1 where it cannot be made. */
static __always_inline int new_checksum(struct xdp_md *xdp, const struct plan *p, const struct change *c, __u32 l4)
{
	__u16 pseudo = fold(c->addrs + p->proto + c->length), sum;
	int udp = p->proto != P_TCP;

	if (c->checksum == pseudo) {
		/* partial: all of it anew, but the field that is in the way (its value is added a second time, inverted) */
		__s64 all = sum_xdp(xdp, l4, c->length);
		__u64 total;

		if (all < 0)
			return -1;
		/* bpf_csum_diff adds up words as they lie in memory */
		total = __builtin_bswap16(fold64(all));
		total += (__u16)~c->checksum;
		total += (__u16)~c->old_port + c->new_port;
		total += fold(c->addrs) + p->proto + c->length;
		total += (__u16)~fold(c->old_addr) + fold(c->new_addr);
		sum = ~fold64(total);
	} else {
		if (!p->nat)
			return c->checksum;
		sum = ~fold64((__u64)(__u16)~c->checksum + (__u16)~fold(c->old_addr) + fold(c->new_addr) +
			      (__u16)~c->old_port + c->new_port);
	}
	return udp && !sum ? 0xffff : sum;
}

static __always_inline int forward_v4_xdp(struct xdp_md *xdp, const struct plan *p)
{
	const __u32 at = p->proto == P_TCP ? 50 : 40;
	struct change c = {};
	__u8 *frame = (void *)(long)xdp->data;
	__u32 sum;
	int made;

	if ((void *)(frame + 42) > (void *)(long)xdp->data_end)
		return 0;
	if ((void *)(frame + at + 2) > (void *)(long)xdp->data_end)
		return 0;
	c.checksum = bpf_ntohs(*(__be16 *)(frame + at));
	c.addrs = halves(bpf_ntohl(*(__be32 *)(frame + 26))) + halves(bpf_ntohl(*(__be32 *)(frame + 30)));
	c.length = be16(frame + 16) - 20;
	if (p->nat) {
		c.old_addr = halves(bpf_ntohl(*(__be32 *)(frame + (p->reply ? 26 : 30))));
		c.new_addr = halves((__u32)p->addr[1]);
		c.old_port = p->reply ? be16(frame + 34) : be16(frame + 36);
		c.new_port = p->port;
	}
	/* UDP without a checksum: as it is (by NAT it does not come here) */
	made = p->proto == P_UDP && !c.checksum ? 0 : new_checksum(xdp, p, &c, 34);
	if (made < 0)
		return 0;

	frame = (void *)(long)xdp->data;
	if ((void *)(frame + 42) > (void *)(long)xdp->data_end)
		return 0;
	put_macs(frame, p);
	sum = (__u16)~be16(frame + 24) + (__u16)~0x0100;
	frame[22]--;
	if (p->nat) {
		sum += (__u16)~fold(c.old_addr) + fold(c.new_addr);
		if (p->reply) {
			*(__be32 *)(frame + 26) = bpf_htonl(p->addr[1]);
			*(__be16 *)(frame + 34) = bpf_htons(p->port);
		} else {
			*(__be32 *)(frame + 30) = bpf_htonl(p->addr[1]);
			*(__be16 *)(frame + 36) = bpf_htons(p->port);
		}
	}
	*(__be16 *)(frame + 24) = bpf_htons((__u16)~fold(sum));
	if ((void *)(frame + at + 2) > (void *)(long)xdp->data_end)
		return 0;
	*(__be16 *)(frame + at) = bpf_htons(made);
	return 1;
}

static __always_inline __u32 sum16(const __u8 *p)
{
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < 16; i += 2)
		sum += be16(p + i);
	return sum;
}

static __always_inline int forward_v6_xdp(struct xdp_md *xdp, const struct plan *p)
{
	const __u32 at = p->proto == P_TCP ? 70 : 60;
	struct change c = {};
	__u8 *frame = (void *)(long)xdp->data;
	__be64 new[2];
	int made;

	if ((void *)(frame + 62) > (void *)(long)xdp->data_end)
		return 0;
	if ((void *)(frame + at + 2) > (void *)(long)xdp->data_end)
		return 0;
	new[0] = __builtin_bswap64(p->addr[0]);
	new[1] = __builtin_bswap64(p->addr[1]);
	c.checksum = bpf_ntohs(*(__be16 *)(frame + at));
	c.addrs = sum16(frame + 22) + sum16(frame + 38);
	c.length = be16(frame + 18);
	if (p->nat) {
		c.old_addr = p->reply ? sum16(frame + 22) : sum16(frame + 38);
		c.new_addr = sum16((__u8 *)new);
		c.old_port = p->reply ? be16(frame + 54) : be16(frame + 56);
		c.new_port = p->port;
	}
	made = p->proto == P_UDP && !c.checksum ? 0 : new_checksum(xdp, p, &c, 54);
	if (made < 0)
		return 0;

	frame = (void *)(long)xdp->data;
	if ((void *)(frame + 62) > (void *)(long)xdp->data_end)
		return 0;
	put_macs(frame, p);
	frame[21]--;
	if (p->nat) {
		if (p->reply) {
			__builtin_memcpy(frame + 22, new, 16);
			*(__be16 *)(frame + 54) = bpf_htons(p->port);
		} else {
			__builtin_memcpy(frame + 38, new, 16);
			*(__be16 *)(frame + 56) = bpf_htons(p->port);
		}
	}
	if ((void *)(frame + at + 2) > (void *)(long)xdp->data_end)
		return 0;
	*(__be16 *)(frame + at) = bpf_htons(made);
	return 1;
}

/* Wraps a frame whose packet is ready: complete, and with its TTL counted down. */
__noinline int wrap_xdp(struct xdp_md *xdp)
{
	struct tier_cpu *cpu = this_cpu();
	struct inner in;
	struct plan *p;
	__u8 *frame = (void *)(long)xdp->data;
	__u32 off;
	__s64 sum;
	__be16 field;
	int padding;

	if (!cpu || (void *)(frame + 34) > (void *)(long)xdp->data_end)
		return 0;
	p = &cpu->plan;
	read_inner(frame + 14, p->v6, &in);
	padding = bpf_xdp_get_buff_len(xdp) - 14 - in.total;
	if (padding > 0 && bpf_xdp_adjust_tail(xdp, -padding))
		return 0;
	if (bpf_xdp_adjust_head(xdp, -(int)tunnel_overhead(p->tunnel)))
		return 0;
	frame = (void *)(long)xdp->data;
	if ((void *)(frame + OUTER_MAX) > (void *)(long)xdp->data_end)
		return 0;
	write_outer(frame, p, &in, cpu);
	if (!(p->tunnel & TUNNEL_SUM))
		return 1;
	off = 14 + outer_ip(p);
	sum = sum_xdp(xdp, off, in.total + 8);
	if (sum < 0)
		return 0;
	/* added up as it lies in memory */
	field = ~fold64(sum);
	return !bpf_xdp_store_bytes(xdp, off + 4, &field, 2);
}

/* Does what this processor's plan says. */
__noinline int forward_xdp(struct xdp_md *xdp)
{
	struct tier_cpu *cpu = this_cpu();
	struct plan *p;

	if (!cpu)
		return XDP_DROP;
	p = &cpu->plan;
	if (!(p->v6 ? forward_v6_xdp(xdp, p) : forward_v4_xdp(xdp, p)) || (p->tunnel && !wrap_xdp(xdp))) {
		failed(p, cpu);
		return XDP_DROP;
	}
	return send_on(p, cpu);
}

#endif
