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

/* What a packet's own headers say. */
struct head {
	__u8 v6, proto, ttl, tcp_flags;
	__u16 sport, dport;
	__u16 total;      /* bytes of the IP packet */
	__u16 l4_header;  /* bytes of the transport header */
	__u8 no_checksum; /* UDP without one */
};

static __always_inline __u16 be16(const __u8 *p)
{
	return p[0] << 8 | p[1];
}

/* The sum over a good IPv4 header is all ones. */
static __always_inline int adds_up(const __u8 *ip)
{
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < 20; i += 2)
		sum += be16(ip + i);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
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

/* Reads a plain packet of TCP or UDP; 0 where it is something else, or odd. `frame` is its length. */
static __always_inline int plain_v4(void *ctx, const int face, __u32 frame, struct head *h, __u8 *ip)
{
	if (load(ctx, face, 14, ip, 28))
		return 0;
	if (ip[0] != 0x45 || (ip[6] & 0xbf) || ip[7])
		return 0;
	h->v6 = 0;
	h->proto = ip[9];
	h->ttl = ip[8];
	h->total = be16(ip + 2);
	return h->total + 14 <= frame && adds_up(ip);
}

static __always_inline int plain_v6(void *ctx, const int face, __u32 frame, struct head *h, __u8 *ip)
{
	if (load(ctx, face, 14, ip, 48) || ip[0] >> 4 != 6)
		return 0;
	h->v6 = 1;
	h->proto = ip[6];
	h->ttl = ip[7];
	h->total = be16(ip + 4);
	if (h->total > 0xffff - 40)
		return 0;
	h->total += 40;
	return h->total + 14 <= frame;
}

/* The transport header, of which the first eight bytes are at `l4`. */
static __always_inline int plain_transport(void *ctx, const int face, struct head *h, const __u8 *l4)
{
	__u32 off = h->v6 ? 54 : 34, room = h->total - (off - 14);
	__u8 t[2];

	h->sport = be16(l4);
	h->dport = be16(l4 + 2);
	h->no_checksum = 0;
	if (h->total < off - 14)
		return 0;
	if (h->proto == P_TCP) {
		if (load(ctx, face, off + 12, t, 2))
			return 0;
		h->l4_header = (t[0] >> 4) * 4;
		h->tcp_flags = t[1];
		return h->l4_header >= 20 && h->l4_header <= room;
	}
	if (h->proto == P_UDP) {
		h->l4_header = 8;
		h->tcp_flags = 0;
		h->no_checksum = !l4[6] && !l4[7];
		return be16(l4 + 4) >= 8 && be16(l4 + 4) <= room;
	}
	return 0;
}

/*
 * Whether a super-packet's checksum is partial, as it should be. One that GRO made as a list of its segments has the first one's,
 * complete or partial; the core knows what to do with it.
 */
static __always_inline int is_partial(void *ctx, const int face, const struct head *h, __u32 addrs)
{
	__u32 off = h->v6 ? 54 : 34, sum = addrs + h->proto + h->total - (off - 14);
	__u8 t[2];

	return !load(ctx, face, off + (h->proto == P_TCP ? 16 : 6), t, 2) && be16(t) == fold(sum);
}

/* What the entry says of the connection, beside the plan. */
struct found {
	__u64 word;   /* its word 0, before all the rest */
	__u64 ports;
	__u64 seen, route;
	__u64 client_low; /* the client's address, the low word; of IPv4 all of it */
	__u64 client_high;
	__u32 dest;
};

static __always_inline int read_v4(struct plan *p, struct found *f)
{
	struct entry_v4 *e = bpf_map_lookup_elem(&entries_v4, &p->slot);
	__u64 ends, real;

	if (!e)
		return 0;
	f->word = READ64(&e->w[0]);
	barrier();
	ends = READ64(&e->w[1]);
	f->ports = READ64(&e->w[2]);
	real = READ64(&e->w[3]);
	f->seen = READ64(&e->w[4]);
	f->route = READ64(&e->w[5]);
	f->dest = real;
	f->client_low = ends >> 32;
	f->client_high = 0;
	p->addr[0] = 0;
	p->addr[1] = p->reply ? (__u32)ends : real >> 32;
	return 1;
}

static __always_inline int read_v6(struct plan *p, struct found *f)
{
	struct entry_v6 *e = bpf_map_lookup_elem(&entries_v6, &p->slot);

	if (!e)
		return 0;
	f->word = READ64(&e->w[0]);
	barrier();
	f->client_high = READ64(&e->w[1]);
	f->client_low = READ64(&e->w[2]);
	p->addr[0] = p->reply ? READ64(&e->w[3]) : READ64(&e->w[5]);
	p->addr[1] = p->reply ? READ64(&e->w[4]) : READ64(&e->w[6]);
	f->ports = READ64(&e->w[7]);
	f->dest = READ64(&e->w[8]);
	f->seen = READ64(&e->w[9]);
	f->route = READ64(&e->w[10]);
	return 1;
}

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
 * Forward, hold or up, by the flags of the entry's word 0. Whoever goes up while the connection's direction is the tier's, or
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

static __always_inline int judge_flow_v4(void *ctx, const int face, __u32 frame, __u32 gso, struct plan *p, struct tier_cpu *cpu)
{
	struct found f = {};
	struct head h;
	struct key_v4 k;
	__u8 ip[28];
	__u64 pair, word, *w;
	int can;

	if (!plain_v4(ctx, face, frame, &h, ip) || !plain_transport(ctx, face, &h, ip + 20))
		return V_NONE;
	k.w[0] = be64(ip + 12);
	k.w[1] = key_ports(h.sport, h.dport, h.proto);
	pair = find_v4(&k);
	if (!pair) {
		struct service_key svc = { .family = FAMILY_V4 };

		__builtin_memcpy(svc.addr, ip + 16, 4);
		return is_service(&svc, h.proto, bpf_htons(h.dport)) ? V_UP : V_OTHERS;
	}
	p->slot = pair & LVSD_SLOT_MASK;
	p->reply = !!(pair & LVSD_PAIR_OUT);
	p->v6 = 0;
	if (!read_v4(p, &f))
		return V_UP;
	can = can_forward(p, &h, &f, gso, k.w[0] >> 32, 0);
	if (gso && !is_partial(ctx, face, &h, halves(k.w[0]) + halves(k.w[0] >> 32)))
		can = 0;
	barrier();
	w = entry_word(p, 0, 0);
	if (!w)
		return V_UP;
	/* that the slot is still this flow's */
	if (can && entry_matches_v4(pair, &k) == 0)
		return V_UP;
	word = f.word;
	return turn(w, word, p->reply, can, cpu);
}

static __always_inline int judge_flow_v6(void *ctx, const int face, __u32 frame, __u32 gso, struct plan *p, struct tier_cpu *cpu)
{
	struct found f = {};
	struct head h;
	struct key_v6 k;
	__u8 ip[48];
	__u64 pair, *w;
	int can;

	if (!plain_v6(ctx, face, frame, &h, ip) || !plain_transport(ctx, face, &h, ip + 40))
		return V_NONE;
#pragma unroll
	for (int i = 0; i < 4; i++)
		k.w[i] = be64(ip + 8 + 8 * i);
	k.w[4] = key_ports(h.sport, h.dport, h.proto);
	pair = find_v6(&k);
	if (!pair) {
		struct service_key svc = { .family = FAMILY_V6 };

		__builtin_memcpy(svc.addr, ip + 24, 16);
		return is_service(&svc, h.proto, bpf_htons(h.dport)) ? V_UP : V_OTHERS;
	}
	p->slot = pair & LVSD_SLOT_MASK;
	p->reply = !!(pair & LVSD_PAIR_OUT);
	p->v6 = 1;
	if (!read_v6(p, &f))
		return V_UP;
	can = can_forward(p, &h, &f, gso, k.w[1], k.w[0]);
	if (gso) {
		__u32 sum = 0;

		for (int i = 0; i < 4; i++)
			sum += halves(k.w[i]) + halves(k.w[i] >> 32);
		if (!is_partial(ctx, face, &h, sum))
			can = 0;
	}
	barrier();
	w = entry_word(p, 0, 0);
	if (!w)
		return V_UP;
	if (can && entry_matches_v6(pair, &k) == 0)
		return V_UP;
	return turn(w, f.word, p->reply, can, cpu);
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
