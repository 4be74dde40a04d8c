/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The decapsulator of a real server: takes the outer header off packets that a director tunnels to one of this
 * interface's addresses, and hands what was inside to the stack. For kernels without tunnel devices, and instead of them.
 *
 * Taken: IPIP (protocols 4 and 41) and GRE (47, with or without checksum) over IPv4 without options and over IPv6 without
 * extension headers. Everything else passes untouched, fragments too: the stack alone can put them together.
 *
 * GRE's checksum is stepped over, not verified: what is inside has checksums of its own, which the stack verifies.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define FAMILY_V4 4
#define FAMILY_V6 6
#define ETH_LEN 14
#define V4_LEN 20
#define V6_LEN 40
#define TYPE_V4 bpf_htons(0x0800)
#define TYPE_V6 bpf_htons(0x86dd)
#define GRE_CHECKSUM bpf_htons(0x8000)
#define ECN_MASK 3
#define ECN_CE 3

enum { P_IPIP = 4, P_IPV6 = 41, P_GRE = 47 };

/* An address of the interface; IPv4 fills the first word. Network byte order. */
struct own_key {
	__u32 family;
	__u32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct own_key);
	__type(value, __u32);
} own_addresses SEC(".maps");

struct eth {
	__u8 addrs[12];
	__be16 type;
} __attribute__((packed));

struct v4 {
	__u8 version_length;
	__u8 tos;
	__be16 total;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 proto;
	__u16 check;
	__u32 from;
	__u32 to;
};

struct v6 {
	__u8 head[4]; /* version, traffic class, flow label */
	__be16 payload;
	__u8 next;
	__u8 hops;
	__u32 from[4];
	__u32 to[4];
};

struct gre {
	__be16 flags;
	__be16 type;
};

/* What the outer header says. */
struct outer {
	__u32 len; /* of the headers that go, without Ethernet's */
	__u32 total; /* of the IP packet */
	__u8 proto;
	__u8 ecn;
};

static __always_inline int is_own(__u32 family, const __u32 *addr)
{
	struct own_key key = { .family = family };

	key.addr[0] = addr[0];
	if (family == FAMILY_V6) {
		key.addr[1] = addr[1];
		key.addr[2] = addr[2];
		key.addr[3] = addr[3];
	}
	return bpf_map_lookup_elem(&own_addresses, &key) != 0;
}

static __always_inline int outer_v4(void *at, void *end, struct outer *o)
{
	struct v4 *h = at;

	if ((void *)(h + 1) > end || h->version_length != 0x45)
		return 0;
	/* more fragments, or an offset */
	if (h->fragment & bpf_htons(0x3fff))
		return 0;
	o->len = V4_LEN;
	o->total = bpf_ntohs(h->total);
	o->proto = h->proto;
	o->ecn = h->tos & ECN_MASK;
	return is_own(FAMILY_V4, &h->to);
}

static __always_inline int outer_v6(void *at, void *end, struct outer *o)
{
	struct v6 *h = at;

	if ((void *)(h + 1) > end || h->head[0] >> 4 != 6)
		return 0;
	o->len = V6_LEN;
	o->total = V6_LEN + bpf_ntohs(h->payload);
	o->proto = h->next;
	o->ecn = h->head[1] >> 4 & ECN_MASK;
	return is_own(FAMILY_V6, h->to);
}

/* The EtherType of what is inside; 0 where that is nothing for us. Adds GRE's header to the length. */
static __always_inline __be16 inner_type(void *at, void *end, struct outer *o)
{
	struct gre *g = at;

	if (o->proto == P_IPIP)
		return TYPE_V4;
	if (o->proto == P_IPV6)
		return TYPE_V6;
	if (o->proto != P_GRE || (void *)(g + 1) > end)
		return 0;
	/* RFC 2784: version 0, no flag but the checksum's; keys and sequence numbers (RFC 2890) are not ours */
	if (g->flags & ~GRE_CHECKSUM)
		return 0;
	if (g->type != TYPE_V4 && g->type != TYPE_V6)
		return 0;
	o->len += g->flags ? 8 : 4;
	return g->type;
}

/* RFC 6040 section 4.2: congestion that the outer header tells of. 0: the packet must be dropped. */
static __always_inline int congestion_v4(struct v4 *h)
{
	__u32 sum;

	if (!(h->tos & ECN_MASK))
		return 0;
	/* RFC 1624: the word of version and TOS grows by what is added */
	sum = (__u32)(__u16)~bpf_ntohs(h->check) + (ECN_CE - (h->tos & ECN_MASK));
	sum = (sum & 0xffff) + (sum >> 16);
	h->check = bpf_htons((__u16)~sum);
	h->tos |= ECN_CE;
	return 1;
}

static __always_inline int congestion_v6(struct v6 *h)
{
	if (!(h->head[1] >> 4 & ECN_MASK))
		return 0;
	h->head[1] |= ECN_CE << 4;
	return 1;
}

/* Whether a packet of this type is there whole, headers at least. Sets `*drop` for one that may not go on. */
static __always_inline int inner_fits(void *at, void *end, __be16 type, const struct outer *o, int *drop)
{
	if (type == TYPE_V4) {
		struct v4 *h = at;

		if ((void *)(h + 1) > end || h->version_length >> 4 != 4 || o->len + V4_LEN > o->total ||
		    o->len + bpf_ntohs(h->total) > o->total)
			return 0;
		*drop = o->ecn == ECN_CE && !congestion_v4(h);
	} else {
		struct v6 *h = at;

		if ((void *)(h + 1) > end || h->head[0] >> 4 != 6 ||
		    o->len + V6_LEN + bpf_ntohs(h->payload) > o->total)
			return 0;
		*drop = o->ecn == ECN_CE && !congestion_v6(h);
	}
	return 1;
}

SEC("xdp.frags")
int lvsd_decap(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct outer o = {};
	struct eth *eth = data, kept;
	int ours, drop = 0;
	__be16 type;

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	kept = *eth;
	if (eth->type == TYPE_V4)
		ours = outer_v4(data + ETH_LEN, end, &o);
	else if (eth->type == TYPE_V6)
		ours = outer_v6(data + ETH_LEN, end, &o);
	else
		return XDP_PASS;
	if (!ours)
		return XDP_PASS;
	type = inner_type(data + ETH_LEN + o.len, end, &o);
	if (!type || !inner_fits(data + ETH_LEN + o.len, end, type, &o, &drop))
		return XDP_PASS;
	if (drop || bpf_xdp_adjust_head(ctx, o.len))
		return XDP_DROP;

	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	eth = data;
	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	kept.type = type;
	*eth = kept;
	return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
