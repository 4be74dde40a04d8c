/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tier's tunnels: outer headers as modes/src/tunnel.rs makes them, which says what is taken from where. The inner packet has been
 * through a hop already (TTL), and the face has made the room.
 */
#ifndef LVSD_TIER_TUNNEL_H
#define LVSD_TIER_TUNNEL_H

#include "tier.h"

/* Most bytes of Ethernet and outer headers. Every frame has as many behind the outer headers' room has been made. */
#define OUTER_MAX 62

/* What the outer header takes from the inner one. */
struct inner {
	__u32 total;
	__u8 class;
	__u8 ttl;
	__u8 dont_fragment;
};

/* Reads it from the IP header, of which 20 bytes are there. */
static __always_inline void read_inner(const __u8 *ip, int v6, struct inner *in)
{
	if (v6) {
		in->total = be16(ip + 4) + 40;
		in->class = ip[0] << 4 | ip[1] >> 4;
		in->ttl = ip[7];
		in->dont_fragment = 0;
	} else {
		in->total = be16(ip + 2);
		in->class = ip[1];
		in->ttl = ip[8];
		in->dont_fragment = ip[6] & 0x40;
	}
	/* "congestion experienced" becomes ECT(0) */
	if ((in->class & 3) == 3)
		in->class &= ~1;
}

/* Bytes of the outer IP header. */
static __always_inline __u32 outer_ip(const struct plan *p)
{
	return p->tunnel & TUNNEL_V6 ? 40 : 20;
}

static __always_inline __u8 outer_protocol(const struct plan *p)
{
	if (p->tunnel & TUNNEL_GRE)
		return P_GRE;
	return p->v6 ? P_IPV6 : P_IPIP;
}

/*
 * The identification of an outer packet that may be fragmented. Each processor counts by itself, as each worker does, and begins
 * elsewhere.
 */
static __always_inline __u16 next_ident(struct tier_cpu *cpu)
{
	cpu->ident++;
	return cpu->ident + bpf_get_smp_processor_id() * 0x9e37;
}

static __always_inline void write_outer_v4(__u8 *ip, const struct plan *p, const struct inner *in, struct tier_cpu *cpu)
{
	__u32 src = p->source[1], dst = p->addr[1], sum;
	__u16 total = in->total + tunnel_overhead(p->tunnel), id = 0, fragment = 0x4000;

	if (!in->dont_fragment) {
		id = next_ident(cpu);
		fragment = 0;
	}
	sum = 0x4500 + in->class + total + id + fragment + (in->ttl << 8) + outer_protocol(p) + halves(src) + halves(dst);
	*(__u32 *)ip = bpf_htonl(0x45000000 | in->class << 16 | total);
	*(__u32 *)(ip + 4) = bpf_htonl((__u32)id << 16 | fragment);
	*(__u32 *)(ip + 8) = bpf_htonl((__u32)in->ttl << 24 | outer_protocol(p) << 16 | (__u16)~fold(sum));
	*(__u32 *)(ip + 12) = bpf_htonl(src);
	*(__u32 *)(ip + 16) = bpf_htonl(dst);
}

static __always_inline void write_outer_v6(__u8 *ip, const struct plan *p, const struct inner *in)
{
	__u16 payload = in->total + tunnel_overhead(p->tunnel) - 40;

	*(__u32 *)ip = bpf_htonl(0x60000000 | in->class << 20);
	*(__u32 *)(ip + 4) = bpf_htonl((__u32)payload << 16 | outer_protocol(p) << 8 | in->ttl);
	*(__u64 *)(ip + 8) = __builtin_bswap64(p->source[0]);
	*(__u64 *)(ip + 16) = __builtin_bswap64(p->source[1]);
	*(__u64 *)(ip + 24) = __builtin_bswap64(p->addr[0]);
	*(__u64 *)(ip + 32) = __builtin_bswap64(p->addr[1]);
}

/* Writes Ethernet and outer headers at the frame's beginning, where OUTER_MAX bytes can be written; GRE's checksum is still 0. */
static __always_inline void write_outer(__u8 *frame, const struct plan *p, const struct inner *in, struct tier_cpu *cpu)
{
	__be32 gre = bpf_htonl((p->tunnel & TUNNEL_SUM ? 0x80000000 : 0) | (p->v6 ? 0x86dd : 0x0800));

	put_macs(frame, p);
	if (p->tunnel & TUNNEL_V6) {
		*(__be16 *)(frame + 12) = bpf_htons(0x86dd);
		write_outer_v6(frame + 14, p, in);
		if (p->tunnel & TUNNEL_GRE)
			*(__be32 *)(frame + 54) = gre;
		if (p->tunnel & TUNNEL_SUM)
			*(__be32 *)(frame + 58) = 0;
	} else {
		*(__be16 *)(frame + 12) = bpf_htons(0x0800);
		write_outer_v4(frame + 14, p, in, cpu);
		if (p->tunnel & TUNNEL_GRE)
			*(__be32 *)(frame + 34) = gre;
		if (p->tunnel & TUNNEL_SUM)
			*(__be32 *)(frame + 38) = 0;
	}
}

/* A part of a frame, on its way through a checksum; one processor's. */
#define SUM_CHUNK 512
#define SUM_CHUNKS 19

struct sum_buffer {
	__u8 bytes[SUM_CHUNK];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sum_buffer);
} sum_buffers SEC(".maps");

/* The one's complement sum over `len` bytes of a frame from `off` on, not folded; -1 where they cannot be read. */
static __always_inline __s64 sum_bytes(void *ctx, const int face, __u32 off, __u32 len)
{
	__u32 zero = 0, i;
	struct sum_buffer *b = bpf_map_lookup_elem(&sum_buffers, &zero);
	__s64 sum = 0;

	if (!b)
		return -1;
	for (i = 0; i < SUM_CHUNKS; i++) {
		if (len >= SUM_CHUNK) {
			if (load(ctx, face, off, b->bytes, SUM_CHUNK))
				return -1;
			sum = bpf_csum_diff(0, 0, (__be32 *)b->bytes, SUM_CHUNK, sum);
			off += SUM_CHUNK;
			len -= SUM_CHUNK;
		} else {
			__u64 n = len & (SUM_CHUNK - 1), whole;

			if (!n)
				return sum;
			/* Linux 6.1 learns nothing from "not 0" */
			n--;
			asm volatile("" : "+r"(n));
			if (n > SUM_CHUNK - 2)
				return -1;
			n++;
			/* the last word is filled up by zeros */
			whole = (n + 3) & ~3ULL;
			asm volatile("" : "+r"(whole));
			if (whole > SUM_CHUNK || whole < 4)
				return -1;
			*(__u32 *)(b->bytes + whole - 4) = 0;
			if (load(ctx, face, off, b->bytes, n))
				return -1;
			return bpf_csum_diff(0, 0, (__be32 *)b->bytes, whole, sum);
		}
	}
	return len ? -1 : sum;
}

__noinline __s64 sum_skb(struct __sk_buff *skb, __u32 off, __u32 len)
{
	return sum_bytes(skb, FACE_SKB, off, len);
}

__noinline __s64 sum_xdp(struct xdp_md *xdp, __u32 off, __u32 len)
{
	return sum_bytes(xdp, FACE_XDP, off, len);
}

static __always_inline __u16 fold64(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return fold(sum);
}

#endif
