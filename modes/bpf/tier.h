/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The tier: packets of known connections are forwarded here, by the director's own table, and only what needs thought goes up a
 * ring. What it does is what the core does with the same packet, byte for byte; whatever is not plain goes up.
 * docs/tier.md has the rules, src/engine/tier.rs the other side.
 *
 * A judgement makes a plan: everything that a face needs to change the packet and to send it on.
 */
#ifndef LVSD_TIER_H
#define LVSD_TIER_H

#include "classify.h"

/* Flags of an entry's word 0 (src/engine/tier.rs): for each direction, whether its packets are about to be ours, are ours, or
 * are to be dropped rather than sent up while they are about to be. */
#define TIER_MOVING 0x00800000ULL
#define TIER_MOVED 0x01000000ULL
#define TIER_HOLD 0x02000000ULL
#define TIER_OUT_SHIFT 3
#define LVSD_EXPIRING (1ULL << 30)

#define STATE_ESTABLISHED 1
#define STATE_UDP 32

#define METHOD_MASK 0x3f
#define METHOD_MASQ 0
#define METHOD_DROUTE 3

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

#define HOP_LINES 65536
#define HOP_READY 2
#define DEST_AVAILABLE 1
#define TIER_PORTS 256

/* Next hops (src/route/lines.rs). The line behind the last one is the routes' epoch. */
struct hop_line {
	__u64 w[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hop_line);
} hops SEC(".maps");

/* Destinations (src/service/dest.rs). */
struct dest_line {
	__u64 w[16];
};

#define DEST_FLAGS 0
#define DEST_ROUTE 7

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dest_line);
} dests SEC(".maps");

/* What was forwarded for each destination: a row of all destinations for each processor. */
struct dest_count {
	__u64 in_pkts, out_pkts, in_bytes, out_bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct dest_count);
} dest_counts SEC(".maps");

/*
 * What programs have no use for, but a daemon that takes over: what the workers counted, what each line of dests is for
 * (src/service/keep.rs), and what the whole was made with (src/io/bpf/plane.rs).
 */
struct cache_line {
	__u64 w[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cache_line);
} dest_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cache_line);
} dest_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct cache_line);
} plane SEC(".maps");

/* The row of plane whose first word says which daemon's turn it is, counted up; and which one these programs are of. */
#define PLANE_TURN 1

const volatile __u64 generation = 0;

/* The interface of each port; 0 where it is gone or cannot be sent to. */
struct tier_port {
	__u32 ifindex;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TIER_PORTS);
	__type(key, __u32);
	__type(value, struct tier_port);
} tier_ports SEC(".maps");

enum verdict { V_NONE = 0, V_OTHERS, V_UP, V_FORWARD, V_HELD };

struct plan {
	__u64 to;       /* destination MAC:48, MTU:16 */
	__u64 out;      /* source MAC:48, port:16 */
	__u64 addr[2];  /* what replaces an address, high word first; of IPv4 the low half of addr[1] */
	__u32 ifindex;
	__u32 dest;
	__u32 pkts;
	__u32 bytes;
	__u32 slot;
	__u16 port;     /* what replaces the port */
	__u8 verdict;
	__u8 proto;
	__u8 v6;
	__u8 reply;     /* from the server */
	__u8 nat;
	__u8 unused;
};

/* One processor's. Nothing else writes to it, so there is no atomic addition. */
struct tier_cpu {
	__u64 begin;    /* frames that were looked at ... */
	__u64 end;      /* ... and those of them that have reached their ring or gone on */
	__u64 in_pkts, out_pkts, in_bytes, out_bytes;
	__u64 held;     /* dropped while a connection moved to the tier */
	__u64 back;     /* packets of connections that were the tier's and went up the ring */
	__u64 failed;   /* dropped because the packet could not be changed */
	__u64 unserved; /* dropped because it is for a ring and there is none */
	__u32 from;     /* the frame that the plan is of: interface, length */
	__u32 length;
	struct plan plan;
	__u32 alone;    /* no socket gets what would go up */
	__u32 unused;
	__u64 fill[12]; /* 256 bytes in all */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tier_cpu);
} tier_cpus SEC(".maps");

/* Settings that may change: what is written as a connection's timeout. (The ports that can be sent by are for the core.) */
struct tier_conf {
	__u32 established; /* ticks */
	__u32 udp;
	__u64 ports[4];
	__u64 fill[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tier_conf);
} tier_conf SEC(".maps");

const volatile __u32 max_dests = 1;

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

/* Reads what there is of an IP header of `ip` bytes and what follows it. `frame` is the frame's length. */
static __always_inline int read_headers(void *ctx, const int face, __u32 frame, const __u32 at, const __u32 ip, union headers *x)
{
	__u64 len = frame - 14;

	if (frame < 14 + ip + 8)
		return 0;
	if (len > ip + 20)
		len = ip + 20;
	asm volatile("" : "+r"(len));
	if (len < ip + 8 || len > ip + 20)
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

/*
 * Whether a super-packet's checksum is partial, as it should be. One that GRO made as a list of its segments has the first one's,
 * complete or partial; the core knows what to do with it.
 */
static __always_inline int is_partial(const struct head *h, __u32 addrs)
{
	return h->checksum == fold(addrs + h->proto + h->total - (h->v6 ? 40 : 20));
}

/* What the entry says of the connection, beside the plan. */
struct found {
	__u64 word;   /* its word 0, before all the rest */
	__u64 ports;
	__u64 seen, route;
	__u32 dest;
};

/* Puts the way out into the plan; 0 where there is none now. */
static __always_inline int way_out(struct plan *p, __u64 route)
{
	__u32 last = HOP_LINES, id = route, index = id & 0xffff;
	struct hop_line *epoch = bpf_map_lookup_elem(&hops, &last), *hop = bpf_map_lookup_elem(&hops, &index);
	struct tier_port *port;
	__u64 version, meta;
	int at;

	if (!epoch || !hop || (__u32)READ64(&epoch->w[0]) != route >> 32)
		return 0;
	version = READ64(&hop->w[0]);
	barrier();
	if (version & 1) {
		p->out = READ64(&hop->w[4]);
		p->to = READ64(&hop->w[5]);
		meta = READ64(&hop->w[6]);
	} else {
		p->out = READ64(&hop->w[1]);
		p->to = READ64(&hop->w[2]);
		meta = READ64(&hop->w[3]);
	}
	barrier();
	if (READ64(&hop->w[0]) != version || ((meta >> 16) & 0xffff) != id >> 16 || (meta & 3) != HOP_READY)
		return 0;
	at = p->out & 0xffff;
	port = bpf_map_lookup_elem(&tier_ports, &at);
	if (!port || !port->ifindex)
		return 0;
	p->ifindex = port->ifindex;
	return 1;
}

/* Packets and IP bytes that a frame stands for, as the core counts them; 0 where one of its packets is larger than may leave. */
static __always_inline int sizes(struct plan *p, const struct head *h, __u32 gso, __u32 mtu)
{
	__u32 headers = h->l4_header + (h->v6 ? 40 : 20), data;

	p->pkts = 1;
	p->bytes = h->total;
	if (!gso)
		return h->total <= mtu;
	if (gso + headers > mtu)
		return 0;
	data = h->total > headers ? h->total - headers : 0;
	p->pkts = (data + gso - 1) / gso;
	if (!p->pkts)
		p->pkts = 1;
	p->bytes += (p->pkts - 1) * headers;
	return 1;
}

/* Whether the tier may forward the packet, for all that headers, connection and ways say. Fills in the plan. */
static __always_inline int can_forward(struct plan *p, const struct head *h, const struct found *f, __u32 gso, __u64 src_low,
				       __u64 src_high)
{
	__u32 zero = 0, state = (f->word >> 32) & 0xff, method = f->ports & METHOD_MASK;
	struct tier_conf *conf = bpf_map_lookup_elem(&tier_conf, &zero);
	struct dest_line *dest = bpf_map_lookup_elem(&dests, &f->dest);
	__u32 timeout;

	if (!conf || !dest || !(f->word & LVSD_LIVE) || (f->word & LVSD_EXPIRING) || h->ttl <= 1)
		return 0;
	if (h->proto == P_TCP) {
		if (state != STATE_ESTABLISHED || !(h->tcp_flags & TCP_ACK) ||
		    (h->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST)))
			return 0;
		timeout = *(volatile __u32 *)&conf->established;
	} else {
		if (state != STATE_UDP)
			return 0;
		timeout = *(volatile __u32 *)&conf->udp;
	}
	/* a shorter timeout needs its timer set anew */
	if (timeout < (__u32)f->seen)
		return 0;
	if (method == METHOD_MASQ)
		p->nat = 1;
	else if (method == METHOD_DROUTE && !p->reply)
		p->nat = 0;
	else
		return 0;
	if (!(READ64(&dest->w[DEST_FLAGS]) & DEST_AVAILABLE))
		return 0;
	if (p->nat && !p->reply && p->addr[1] == src_low && p->addr[0] == src_high)
		return 0;
	if (p->nat && h->no_checksum)
		return 0;
	if (!way_out(p, p->reply ? f->route : READ64(&dest->w[DEST_ROUTE])))
		return 0;
	p->dest = f->dest;
	p->port = p->reply ? f->ports >> 32 : f->ports >> 16;
	p->proto = h->proto;
	p->v6 = h->v6;
	return sizes(p, h, gso, p->to & 0xffff);
}

/* A word of the entry, of which the families have their own number. Found in one step, so that the verifier sees it is within. */
static __always_inline __u64 *entry_word(const struct plan *p, const int v4, const int v6)
{
	if (p->v6) {
		struct entry_v6 *e = bpf_map_lookup_elem(&entries_v6, &p->slot);

		if (!e)
			return 0;
		asm volatile("" : "+r"(e)); /* or clang adds before it looks */
		return &e->w[v6];
	} else {
		struct entry_v4 *e = bpf_map_lookup_elem(&entries_v4, &p->slot);

		if (!e)
			return 0;
		asm volatile("" : "+r"(e));
		return &e->w[v4];
	}
}

/*
 * Forward, hold or up, by the flags of the entry's word 0. That this still is the entry that was read (`seen`) is looked at here: its
 * words do not change while generation and LIVE stay. Whoever goes up while the connection's direction is the tier's, or
 * is about to be, takes the flags away: so a set MOVED says that nothing of this direction is in a ring.
 */
static __always_inline int turn(__u64 *word, __u64 seen, int reply, int can, struct tier_cpu *cpu)
{
	const __u64 moving = reply ? TIER_MOVING << TIER_OUT_SHIFT : TIER_MOVING;
	const __u64 moved = reply ? TIER_MOVED << TIER_OUT_SHIFT : TIER_MOVED;
	const __u64 hold = reply ? TIER_HOLD << TIER_OUT_SHIFT : TIER_HOLD;

	for (int i = 0; i < 4; i++) {
		__u64 now = READ64(word), next;

		if ((now ^ seen) & LVSD_IDENTITY)
			return V_UP;
		/* another state since: the plan is no longer right */
		if ((now ^ seen) & (0xffULL << 32))
			can = 0;
		if (!(now & (moving | moved)))
			return V_UP;
		if (can && (now & moved))
			return V_FORWARD;
		if (can && (now & hold))
			return V_HELD;
		/* what is dropped for want of a ring is followed by nothing that could overtake it */
		if (cpu->alone)
			return V_UP;
		next = now & ~(moving | moved | hold);
		if (__sync_val_compare_and_swap(word, now, next) == now) {
			if (now & moved)
				cpu->back++;
			return V_UP;
		}
	}
	/* somebody changes the entry all the time; the sender repeats what is lost */
	return V_HELD;
}

/* The flow is not known: the core's if it is for a service. */
static __always_inline int judge_unknown(struct service_key *svc, const struct head *h, __u32 ports)
{
	return is_service(svc, h->proto, bpf_htons(ports & 0xffff)) ? V_UP : V_OTHERS;
}

static __always_inline int judge_flow_v4(void *ctx, const int face, __u32 frame, __u32 gso, struct plan *p, struct tier_cpu *cpu)
{
	union headers x = {};
	struct read_v4 r = {};
	struct found f;
	struct head h;
	struct key_v4 k;
	__u32 ports;
	__u64 pair, *w;
	int can;

	if (!plain_v4(ctx, face, frame, &h, &x))
		return V_NONE;
	ports = bpf_ntohl(x.d[(V4_AT + 20) / 4]);
	k.w[0] = __builtin_bswap64(x.w[(V4_AT + 12) / 8]);
	k.w[1] = (__u64)ports << 32 | h.proto;
	pair = read_v4(&k, &r);
	if (!pair) {
		struct service_key svc = { .family = FAMILY_V4 };

		svc.addr[0] = x.d[(V4_AT + 16) / 4];
		return judge_unknown(&svc, &h, ports);
	}
	p->slot = pair & LVSD_SLOT_MASK;
	p->reply = !!(pair & LVSD_PAIR_OUT);
	p->v6 = 0;
	p->addr[0] = 0;
	p->addr[1] = p->reply ? (__u32)r.w[1] : r.w[3] >> 32;
	f.word = r.w[0];
	f.ports = r.w[2];
	f.dest = r.w[3];
	f.seen = r.w[4];
	f.route = r.w[5];
	can = can_forward(p, &h, &f, gso, k.w[0] >> 32, 0);
	if (gso && !is_partial(&h, halves(k.w[0]) + halves(k.w[0] >> 32)))
		can = 0;
	w = entry_word(p, 0, 0);
	return w ? turn(w, f.word, p->reply, can, cpu) : V_UP;
}

static __always_inline int judge_flow_v6(void *ctx, const int face, __u32 frame, __u32 gso, struct plan *p, struct tier_cpu *cpu)
{
	union headers x = {};
	struct read_v6 r = {};
	struct found f;
	struct head h;
	struct key_v6 k;
	__u32 ports;
	__u64 pair, *w;
	int can;

	if (!plain_v6(ctx, face, frame, &h, &x))
		return V_NONE;
	ports = bpf_ntohl(x.d[(V6_AT + 40) / 4]);
#pragma unroll
	for (int i = 0; i < 4; i++)
		k.w[i] = __builtin_bswap64(x.w[(V6_AT + 8) / 8 + i]);
	k.w[4] = (__u64)ports << 32 | h.proto;
	pair = read_v6(&k, &r);
	if (!pair) {
		struct service_key svc = { .family = FAMILY_V6 };

		__builtin_memcpy(svc.addr, x.b + V6_AT + 24, 16);
		return judge_unknown(&svc, &h, ports);
	}
	p->slot = pair & LVSD_SLOT_MASK;
	p->reply = !!(pair & LVSD_PAIR_OUT);
	p->v6 = 1;
	p->addr[0] = p->reply ? r.w[3] : r.w[5];
	p->addr[1] = p->reply ? r.w[4] : r.w[6];
	f.word = r.w[0];
	f.ports = r.w[7];
	f.dest = r.w[8];
	f.seen = r.w[9];
	f.route = r.w[10];
	can = can_forward(p, &h, &f, gso, k.w[1], k.w[0]);
	if (gso) {
		__u32 sum = 0;

		for (int i = 0; i < 4; i++)
			sum += halves(k.w[i]) + halves(k.w[i] >> 32);
		if (!is_partial(&h, sum))
			can = 0;
	}
	w = entry_word(p, 0, 0);
	return w ? turn(w, f.word, p->reply, can, cpu) : V_UP;
}

/* Notes when the connection was seen. */
static __always_inline void note_seen(const struct plan *p, __u64 *word)
{
	__u32 tick = bpf_ktime_get_coarse_ns() >> 26, zero = 0;
	struct tier_conf *conf = bpf_map_lookup_elem(&tier_conf, &zero);
	__u64 seen, next;

	if (!conf || !word)
		return;
	seen = READ64(word);
	next = (__u64)tick << 32 | (p->proto == P_TCP ? conf->established : conf->udp);
	/* a clock that is coarser than the core's does not turn back what that has noted */
	if (next != seen && (__s32)(tick - (__u32)(seen >> 32)) >= 0)
		__sync_val_compare_and_swap(word, seen, next);
}

/* Counts a packet that is forwarded. */
static __always_inline void count(const struct plan *p, struct tier_cpu *cpu)
{
	__u32 at = bpf_get_smp_processor_id() * max_dests + p->dest;
	struct dest_count *c = bpf_map_lookup_elem(&dest_counts, &at);
	__u64 *packets;

	if (p->reply) {
		cpu->out_pkts += p->pkts;
		cpu->out_bytes += p->bytes;
		if (c) {
			c->out_pkts += p->pkts;
			c->out_bytes += p->bytes;
		}
		return;
	}
	packets = entry_word(p, 6, 11);
	if (packets)
		__sync_fetch_and_add(packets, 1ULL << 32);
	cpu->in_pkts += p->pkts;
	cpu->in_bytes += p->bytes;
	if (c) {
		c->in_pkts += p->pkts;
		c->in_bytes += p->bytes;
	}
}

static __always_inline struct tier_cpu *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&tier_cpus, &cpu);
}

/* A packet that is not plain goes up. What follows it must not overtake it: its flow is no longer the tier's. */
static __always_inline int odd_goes_up(void *ctx, const int face, int v6)
{
	struct tier_cpu *cpu = this_cpu();
	struct ip_view v = {};
	struct plan p = {};
	__u8 ports[4];
	__u64 pair, *word;

	if (!cpu || !view(ctx, face, 14, v6, &v) || v.later || !has_ports(v.proto) || load(ctx, face, v.l4, ports, 4))
		return V_UP;
	pair = flow_pair(&v, ports, 0);
	if (!pair)
		return V_UP;
	p.slot = pair & LVSD_SLOT_MASK;
	p.v6 = v6;
	word = entry_word(&p, 0, 0);
	return word ? turn(word, READ64(word), !!(pair & LVSD_PAIR_OUT), 0, cpu) : V_UP;
}

/* Sends a packet that has been changed as its plan says. */
static __always_inline int send_on(const struct plan *p, struct tier_cpu *cpu)
{
	note_seen(p, entry_word(p, 4, 9));
	count(p, cpu);
	return bpf_redirect(p->ifindex, 0);
}

/* The new MAC addresses: the first twelve bytes of the frame. */
static __always_inline void put_macs(void *frame, const struct plan *p)
{
	*(__u64 *)frame = __builtin_bswap64((p->to & ~0xffffULL) | p->out >> 48);
	*(__u32 *)(frame + 8) = __builtin_bswap32(p->out >> 16);
}

#endif
