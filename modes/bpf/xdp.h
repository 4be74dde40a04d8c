/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the XDP face of the classifier needs beside the rest: the sockets, and what is known of their interfaces.
 */
#ifndef LVSD_XDP_H
#define LVSD_XDP_H

#define PORT_QUEUES 128
#define PORTS_MAX 64

/* An interface that AF_XDP sockets serve. While it has no line here, everything is passed. */
struct port {
	__u16 mac[3];
	__u8 generic; /* the XDP program is run by the stack, and so sees what is put back, too */
	__u8 unused;
	__u32 first; /* place of the socket of queue 0 in xsks */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PORTS_MAX);
	__type(key, __u32); /* interface index */
	__type(value, struct port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, PORTS_MAX * PORT_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

static __always_inline int is_generic(__u32 index)
{
	struct port *port = bpf_map_lookup_elem(&ports, &index);

	return port && port->generic;
}

/*
 * A frame that is put back must not be ours again when it comes by a generic XDP program. That cannot see the mark, but an address
 * that is no port's; the program at the ingress hook has the stack take it all the same. (It cannot put the address right again:
 * of a frame that generic XDP has copied, kernel 6.18 shows it no link header.)
 */
static __always_inline void to_nobody(struct __sk_buff *skb)
{
	const __u8 nobody[6] = { 0x02, 'l', 'v', 's', 'd', 0 };

	bpf_skb_store_bytes(skb, 0, nobody, 6, 0);
}

static __always_inline void to_us_again(struct __sk_buff *skb)
{
	bpf_skb_change_type(skb, 0 /* PACKET_HOST */);
}

#endif
