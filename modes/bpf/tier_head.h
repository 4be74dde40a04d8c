/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The headers of a plain packet, for the tier: IPv4 without options, IPv6 without extension headers, TCP or UDP behind them.
 */
#ifndef LVSD_TIER_HEAD_H
#define LVSD_TIER_HEAD_H

#include "classify.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/*
 * The headers of a packet of TCP or UDP as far as they are wanted, read in one go. They lie so that addresses and ports are aligned,
 * or clang would read them byte by byte: IPv4 begins at byte 4, IPv6 at byte 0.
 */
union headers {
	__u64 w[8];
	__u32 d[16];
	__u16 h[32];
	__u8 b[64];
};

#define V4_AT 4
#define V6_AT 0

/* What a packet's own headers say. */
struct head {
	__u8 v6, proto, ttl, tcp_flags;
	__u16 total;      /* bytes of the IP packet */
	__u16 l4_header;  /* bytes of the transport header */
	__u16 checksum;   /* the transport's */
	__u8 no_checksum; /* UDP without one */
};

static __always_inline __u16 be16(const __u8 *p)
{
	return p[0] << 8 | p[1];
}

/* The one's complement sum in one word; 0 only of 0. */
static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + sum;
}

static __always_inline __u32 halves(__u32 w)
{
	return (w >> 16) + (w & 0xffff);
}

/* The sum over a good IPv4 header is all ones, in whatever order of bytes. */
static __always_inline int adds_up(const __u32 *ip)
{
	__u64 sum = (__u64)ip[0] + ip[1] + ip[2] + ip[3] + ip[4];

	sum = (sum & 0xffffffff) + (sum >> 32);
	return fold(halves(sum) + (sum >> 32)) == 0xffff;
}

/*
 * The same by direct access, which XDP has, of the usual frame: a helper call costs some 30 ns. IPv4 is read from two bytes before its
 * header on, so that it lies as the union has it. 0 where it cannot be had so.
 */
static __always_inline int peek_headers(struct xdp_md *xdp, const __u32 at, const __u32 ip, union headers *x)
{
	const __u8 *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end, *from = data + 14 - at;

	if (data + 14 + ip + 20 > end)
		return 0;
#pragma unroll
	for (int i = 0; i < (at + ip + 20) / 8; i++)
		x->w[i] = *(const __u64 *)(from + 8 * i);
	if ((at + ip + 20) % 8)
		x->d[(at + ip + 20) / 4 - 1] = *(const __u32 *)(from + at + ip + 16);
	return 1;
}

/* Reads what there is of an IP header of `ip` bytes and what follows it. `frame` is the frame's length. */
static __always_inline int read_headers(void *ctx, const int face, __u32 frame, const __u32 at, const __u32 ip, union headers *x)
{
	__u64 len = frame - 14;

	if (face == FACE_XDP && peek_headers(ctx, at, ip, x))
		return 1;
	if (frame < 14 + ip + 8)
		return 0;
	if (len > ip + 20)
		len = ip + 20;
	/* Linux 6.1 does not follow both bounds in one comparison */
	asm volatile("" : "+r"(len));
	if (len < ip + 8)
		return 0;
	return !load(ctx, face, 14, x->b + at, len);
}

/* The transport header at byte `l4`, of which there are `room` bytes by what the IP header says. */
static __always_inline int plain_transport(struct head *h, const union headers *x, const __u32 l4, __u32 frame, __u32 room)
{
	__u32 ip = h->total - room;

	if (h->proto == P_TCP) {
		h->l4_header = (x->b[l4 + 12] >> 4) * 4;
		h->tcp_flags = x->b[l4 + 13];
		h->checksum = bpf_ntohs(x->h[(l4 + 16) / 2]);
		h->no_checksum = 0;
		return frame >= 14 + ip + 20 && h->l4_header >= 20 && h->l4_header <= room;
	}
	if (h->proto == P_UDP) {
		__u32 length = bpf_ntohs(x->h[(l4 + 4) / 2]);

		h->l4_header = 8;
		h->tcp_flags = 0;
		h->checksum = bpf_ntohs(x->h[(l4 + 6) / 2]);
		h->no_checksum = !h->checksum;
		return length >= 8 && length <= room;
	}
	return 0;
}

/* Reads a plain packet of TCP or UDP; 0 where it is something else, or odd. */
static __always_inline int plain_v4(void *ctx, const int face, __u32 frame, struct head *h, union headers *x)
{
	/* a fragment, or a reserved bit; DF may be set */
	const __u16 odd = bpf_htons(0xbfff);

	if (!read_headers(ctx, face, frame, V4_AT, 20, x))
		return 0;
	if (x->b[V4_AT] != 0x45 || (x->h[(V4_AT + 6) / 2] & odd))
		return 0;
	h->v6 = 0;
	h->proto = x->b[V4_AT + 9];
	h->ttl = x->b[V4_AT + 8];
	h->total = bpf_ntohs(x->h[(V4_AT + 2) / 2]);
	if (h->total + 14 > frame || h->total < 20 || !adds_up(x->d + V4_AT / 4))
		return 0;
	return plain_transport(h, x, V4_AT + 20, frame, h->total - 20);
}

static __always_inline int plain_v6(void *ctx, const int face, __u32 frame, struct head *h, union headers *x)
{
	__u32 payload;

	if (!read_headers(ctx, face, frame, V6_AT, 40, x) || x->b[V6_AT] >> 4 != 6)
		return 0;
	h->v6 = 1;
	h->proto = x->b[V6_AT + 6];
	h->ttl = x->b[V6_AT + 7];
	payload = bpf_ntohs(x->h[(V6_AT + 4) / 2]);
	if (payload > 0xffff - 40 || payload + 54 > frame)
		return 0;
	h->total = payload + 40;
	return plain_transport(h, x, V6_AT + 40, frame, payload);
}

/* Whether the checksum is partial: the sum over the pseudo-header alone. Of a super-packet it should be. */
static __always_inline int is_partial(const struct head *h, __u32 addrs)
{
	return h->checksum == fold(addrs + h->proto + h->total - (h->v6 ? 40 : 20));
}

#endif
