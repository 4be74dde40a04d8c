/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is ours: a packet to a configured virtual service, or a packet whose connection is in the table (a reply of a
 * NAT server above all). Never by a server's address and port alone: the same server may be reached through the director
 * as plain router.
 *
 * What cannot be judged here and concerns a virtual address (later fragments, ICMP errors) is ours too: the core judges
 * it, and what it passes is put back (docs/reinjection.md). An ICMP error to another address is ours if the packet
 * that it speaks of belongs to a connection, or carries in a tunnel one that does.
 *
 * A frame with the number of a VLAN is never ours: it belongs to the VLAN's device, where these programs may be too
 * (docs/vlan.md).
 */
#ifndef LVSD_CLASSIFY_H
#define LVSD_CLASSIFY_H

#include "table.h"

#define FAMILY_V4 4
#define FAMILY_V6 6

/* A virtual service; as a virtual address protocol and port are 0. All of it in network byte order. */
struct service_key {
	__u8 family;
	__u8 proto;
	__be16 port;
	__u32 addr[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct service_key);
	__type(value, __u32);
} services SEC(".maps");

/* A MAC that a macvlan (a virtual router of VRRP) has on top of an interface. */
struct mac_key {
	__u32 ifindex;
	__u8 mac[6];
	__u8 zero[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct mac_key);
	__type(value, __u32);
} macs SEC(".maps");

/* Mark of frames that the director has put back; set by the loader. */
const volatile __u32 magic = 0;

#define IPV6_EXT_MAX 6

enum { P_HOPOPTS = 0, P_ICMP = 1, P_IPIP = 4, P_TCP = 6, P_UDP = 17, P_IPV6 = 41, P_ROUTING = 43, P_FRAGMENT = 44,
       P_GRE = 47, P_AH = 51, P_ICMPV6 = 58, P_DSTOPTS = 60, P_SCTP = 132 };

static __always_inline int has_ports(__u8 proto)
{
	return proto == P_TCP || proto == P_UDP || proto == P_SCTP;
}

static __always_inline int is_service(struct service_key *k, __u8 proto, __be16 port)
{
	k->proto = proto;
	k->port = port;
	if (bpf_map_lookup_elem(&services, k))
		return 1;
	k->port = 0;
	return bpf_map_lookup_elem(&services, k) != 0;
}

static __always_inline int is_virtual_address(struct service_key *k)
{
	k->proto = 0;
	k->port = 0;
	return bpf_map_lookup_elem(&services, k) != 0;
}

/*
 * A frame, of a packet socket or tc program (0) or of an XDP program (1). Everything that takes both is inlined, so that each
 * program has only its own helper in it.
 */
enum { FACE_SKB = 0, FACE_XDP = 1 };

static __always_inline int load(void *ctx, const int face, __u32 off, void *to, __u32 len)
{
	if (face == FACE_XDP)
		return bpf_xdp_load_bytes(ctx, off, to, len);
	return bpf_skb_load_bytes(ctx, off, to, len);
}

/* One IP header, with where its transport header is. */
struct ip_view {
	__u8 addrs[32]; /* source, destination; IPv4 fills the first 8 bytes */
	__u32 l4;
	__u8 family;
	__u8 proto;
	__u8 later; /* a fragment without transport header */
};

static __always_inline int view_v4(void *ctx, const int face, __u32 off, struct ip_view *v)
{
	__u8 h[20];

	if (load(ctx, face, off, h, sizeof(h)) || h[0] >> 4 != 4 || (h[0] & 15) < 5)
		return 0;
	v->family = FAMILY_V4;
	v->proto = h[9];
	v->later = (h[6] & 0x1f) || h[7];
	v->l4 = off + (h[0] & 15) * 4;
	__builtin_memcpy(v->addrs, h + 12, 8);
	return 1;
}

static __always_inline int view_v6(void *ctx, const int face, __u32 off, struct ip_view *v)
{
	__u8 h[8];

	if (load(ctx, face, off, h, sizeof(h)) || h[0] >> 4 != 6 ||
	    load(ctx, face, off + 8, v->addrs, 32))
		return 0;
	v->family = FAMILY_V6;
	v->proto = h[6];
	v->later = 0;
	off += 40;
	for (int i = 0; i < IPV6_EXT_MAX; i++) {
		__u32 len;

		if (v->proto != P_HOPOPTS && v->proto != P_ROUTING && v->proto != P_DSTOPTS && v->proto != P_FRAGMENT &&
		    v->proto != P_AH)
			break;
		if (load(ctx, face, off, h, 4))
			return 0;
		len = (h[1] + 1) * 8;
		if (v->proto == P_AH)
			len = (h[1] + 2) * 4;
		if (v->proto == P_FRAGMENT) {
			len = 8;
			v->later = h[2] || h[3] & 0xf8;
		}
		v->proto = h[0];
		off += len;
		if (v->later)
			break;
	}
	v->l4 = off;
	return 1;
}

/* Not static, so that it is verified once (table.h); so must be all that is called with many states. */
__noinline int view_skb(struct __sk_buff *skb, __u32 off, int v6, struct ip_view *v)
{
	if (!v)
		return 0;
	return v6 ? view_v6(skb, FACE_SKB, off, v) : view_v4(skb, FACE_SKB, off, v);
}

__noinline int view_xdp(struct xdp_md *xdp, __u32 off, int v6, struct ip_view *v)
{
	if (!v)
		return 0;
	return v6 ? view_v6(xdp, FACE_XDP, off, v) : view_v4(xdp, FACE_XDP, off, v);
}

static __always_inline int view(void *ctx, const int face, __u32 off, int v6, struct ip_view *v)
{
	return face == FACE_XDP ? view_xdp(ctx, off, v6, v) : view_skb(ctx, off, v6, v);
}

static __always_inline __u64 be64(const __u8 *p)
{
	__u64 x;

	__builtin_memcpy(&x, p, 8);
	return __builtin_bswap64(x);
}

/* The flow's pair (table.h), looked up as it goes, or (reverse) as the packet that answers it; 0 where it is not known. */
static __always_inline __u64 flow_pair(const struct ip_view *v, const __u8 *ports, int reverse)
{
	__u16 s = ports[0] << 8 | ports[1], d = ports[2] << 8 | ports[3];
	__u64 pw = reverse ? key_ports(d, s, v->proto) : key_ports(s, d, v->proto);

	if (v->family == FAMILY_V4) {
		struct key_v4 k;
		__u64 a = be64(v->addrs);

		k.w[0] = reverse ? a << 32 | a >> 32 : a;
		k.w[1] = pw;
		return find_v4(&k);
	} else {
		struct key_v6 k;
		int s6 = reverse ? 16 : 0;

		k.w[0] = be64(v->addrs + s6);
		k.w[1] = be64(v->addrs + s6 + 8);
		k.w[2] = be64(v->addrs + 16 - s6);
		k.w[3] = be64(v->addrs + 24 - s6);
		k.w[4] = pw;
		return find_v6(&k);
	}
}

static __always_inline int flow_known(const struct ip_view *v, const __u8 *ports, int reverse)
{
	return flow_pair(v, ports, reverse) != 0;
}

static __always_inline int is_icmp_error(__u8 family, __u8 type)
{
	if (family == FAMILY_V4) /* unreachable, source quench, time exceeded, parameter problem */
		return type == 3 || type == 4 || type == 11 || type == 12;
	return type >= 1 && type <= 4;
}

/* Whether a packet within another one belongs to one of our connections, as it is or (reverse) as the one that answers it. */
static __always_inline int inner_concerns_us(void *ctx, const int face, __u32 off, int v6, int reverse)
{
	struct ip_view in = {};
	__u8 ports[4];

	if (!view(ctx, face, off, v6, &in) || in.later || !has_ports(in.proto) || load(ctx, face, in.l4, ports, 4))
		return 0;
	return flow_known(&in, ports, reverse);
}

__noinline int inner_is_ours_skb(struct __sk_buff *skb, __u32 off, int v6, int reverse)
{
	return inner_concerns_us(skb, FACE_SKB, off, v6, reverse);
}

__noinline int inner_is_ours_xdp(struct xdp_md *xdp, __u32 off, int v6, int reverse)
{
	return inner_concerns_us(xdp, FACE_XDP, off, v6, reverse);
}

static __always_inline int inner_is_ours(void *ctx, const int face, __u32 off, int v6, int reverse)
{
	return face == FACE_XDP ? inner_is_ours_xdp(ctx, off, v6, reverse) : inner_is_ours_skb(ctx, off, v6, reverse);
}

/* Whether an ICMP error speaks of a packet of one of our connections, or of a tunnel's around one. */
static __always_inline int error_concerns_us(void *ctx, const int face, __u32 l4, int v6)
{
	struct ip_view in = {};
	__u8 h[4];

	if (!view(ctx, face, l4 + 8, v6, &in) || in.later)
		return 0;
	if (in.proto == P_IPIP || in.proto == P_IPV6)
		return inner_is_ours(ctx, face, in.l4, in.proto == P_IPV6, 0);
	if (in.proto != P_GRE)
		return inner_is_ours(ctx, face, l4 + 8, v6, 1);
	/* flags, version, EtherType; a checksum and its padding */
	if (load(ctx, face, in.l4, h, 4))
		return 0;
	return inner_is_ours(ctx, face, in.l4 + (h[0] & 0x80 ? 8 : 4), h[2] == 0x86 && h[3] == 0xdd, 0);
}

__noinline int error_is_ours_skb(struct __sk_buff *skb, __u32 l4, int v6)
{
	return error_concerns_us(skb, FACE_SKB, l4, v6);
}

__noinline int error_is_ours_xdp(struct xdp_md *xdp, __u32 l4, int v6)
{
	return error_concerns_us(xdp, FACE_XDP, l4, v6);
}

/* Whether a frame's destination is the MAC address of a macvlan on top of this interface. */
static __always_inline int is_to_macvlan(void *ctx, const int face, __u32 ifindex)
{
	struct mac_key k = {};

	if (load(ctx, face, 0, k.mac, 6))
		return 0;
	k.ifindex = ifindex;
	return bpf_map_lookup_elem(&macs, &k) != 0;
}

/* A frame that is sent to this interface's own MAC address, or to that of a macvlan on top of it. */
static __always_inline int is_ours(void *ctx, const int face)
{
	struct service_key svc = {};
	struct ip_view v = {};
	__u32 off = 14;
	__be16 type;
	__u8 ports[4];
	int v6;

	if (load(ctx, face, 12, &type, 2))
		return 0;
	/* XDP sees the tag; its number may be 0, which is none */
	if (face == FACE_XDP && (type == bpf_htons(0x8100) || type == bpf_htons(0x88a8))) {
		__u8 tag[4];

		if (load(ctx, face, 14, tag, 4) || tag[0] & 15 || tag[1])
			return 0;
		__builtin_memcpy(&type, tag + 2, 2);
		off = 18;
	}
	if (type == bpf_htons(0x0800))
		v6 = 0;
	else if (type == bpf_htons(0x86dd))
		v6 = 1;
	else
		return 0;
	if (!view(ctx, face, off, v6, &v))
		return 0;

	svc.family = v.family;
	__builtin_memcpy(svc.addr, v6 ? v.addrs + 16 : v.addrs + 4, 4);
	if (v6)
		__builtin_memcpy(&svc.addr[1], v.addrs + 20, 12);
	if (v.later)
		return is_virtual_address(&svc);
	if (v.proto == P_ICMP || v.proto == P_ICMPV6) {
		__u8 icmp;

		if (v.proto != (v6 ? P_ICMPV6 : P_ICMP) || load(ctx, face, v.l4, &icmp, 1) ||
		    !is_icmp_error(v.family, icmp))
			return 0;
		if (is_virtual_address(&svc))
			return 1;
		return face == FACE_XDP ? error_is_ours_xdp(ctx, v.l4, v6) : error_is_ours_skb(ctx, v.l4, v6);
	}
	if (!has_ports(v.proto) || load(ctx, face, v.l4, ports, 4))
		return 0;
	return is_service(&svc, v.proto, *(__be16 *)(ports + 2)) || flow_known(&v, ports, 0);
}

#endif
