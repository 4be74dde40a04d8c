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

#include "tier_head.h"

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
#define METHOD_TUNNEL 2
#define METHOD_DROUTE 3

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
#define DEST_ADDR 1     /* high word first */
#define DEST_END 3      /* the address's family in bits 16 to 23 */
#define DEST_ROUTE 7
#define DEST_TUNNEL 9   /* kind:8 from the lowest bit up, 0:8, flags:16 */
#define DEST_SOURCE 10  /* high word first; then routes' epoch:32, changes:31, busy:1 */
#define DEST_PATH_MTU 13 /* tick of its end:32, 0:16, MTU:16 */
#define SOURCE_BUSY 1

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
	__u64 source[2]; /* of a tunnel, whose other end is addr */
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
	__u8 tunnel;    /* TUNNEL_*; 0: none */
};

#define TUNNEL_IPIP 1
#define TUNNEL_GRE 2
#define TUNNEL_SUM 4 /* GRE with a checksum */
#define TUNNEL_V6 8  /* the outer packet */

/* Least MTU of a link that carries IPv4, and IPv6. */
#define LEAST_V4 68
#define LEAST_V6 1280

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
	__u64 ident;    /* of outer packets that may be fragmented */
	__u64 fill[9]; /* 256 bytes in all */
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

static __always_inline __u32 tunnel_overhead(__u8 tunnel)
{
	return (tunnel & TUNNEL_V6 ? 40 : 20) + (tunnel & TUNNEL_SUM ? 8 : tunnel & TUNNEL_GRE ? 4 : 0);
}

/*
 * Puts a tunnel into the plan. Its other end is that of the server's line, which may be of another family than the connection.
 * Answers the largest packet that it carries, or 0: where something must be found out, or told, or cut.
 */
static __always_inline __u32 tunnel(struct plan *p, struct dest_line *dest, __u32 epoch, __u32 mtu)
{
	__u64 how = READ64(&dest->w[DEST_TUNNEL]), source = READ64(&dest->w[DEST_SOURCE + 2]), path;
	__u32 overhead;

	if ((how & 0xff) == 0)
		p->tunnel = TUNNEL_IPIP;
	else if ((how & 0xff) == 2)
		p->tunnel = how & 0x10000 ? TUNNEL_GRE | TUNNEL_SUM : TUNNEL_GRE;
	else
		return 0;
	if (((READ64(&dest->w[DEST_END]) >> 16) & 0xff) == FAMILY_V6)
		p->tunnel |= TUNNEL_V6;
	if (source >> 32 != epoch || source & SOURCE_BUSY)
		return 0;
	barrier();
	p->source[0] = READ64(&dest->w[DEST_SOURCE]);
	p->source[1] = READ64(&dest->w[DEST_SOURCE + 1]);
	barrier();
	if (READ64(&dest->w[DEST_SOURCE + 2]) != source)
		return 0;
	p->addr[0] = READ64(&dest->w[DEST_ADDR]);
	p->addr[1] = READ64(&dest->w[DEST_ADDR + 1]);
	path = READ64(&dest->w[DEST_PATH_MTU]);
	/* one that is over is as good as none; the core forgets it when it meets it */
	if (path && (__s32)((__u32)(bpf_ktime_get_ns() >> 26) - (__u32)(path >> 32)) < 0 && (path & 0xffff) < mtu)
		mtu = path & 0xffff;
	overhead = tunnel_overhead(p->tunnel);
	if (mtu < overhead + (p->tunnel & TUNNEL_V6 ? LEAST_V6 : LEAST_V4))
		return 0;
	return mtu - overhead;
}

/* Whether the tier may forward the packet, for all that headers, connection and ways say. Fills in the plan. */
static __always_inline int can_forward(const int face, struct plan *p, const struct head *h, const struct found *f, __u32 gso,
				       int partial, __u64 src_low, __u64 src_high)
{
	__u32 zero = 0, mtu, state = (f->word >> 32) & 0xff, method = f->ports & METHOD_MASK;
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
	p->tunnel = 0;
	p->nat = method == METHOD_MASQ;
	if (!p->nat && (p->reply || (method != METHOD_DROUTE && method != METHOD_TUNNEL)))
		return 0;
	/* a super-packet that GRO made as a list of segments has the first one's checksum; the core knows what to do with it */
	if (gso && !partial)
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
	mtu = p->to & 0xffff;
	if (method == METHOD_TUNNEL) {
		mtu = tunnel(p, dest, READ64(&dest->w[DEST_ROUTE]) >> 32, mtu);
		if (!mtu || h->total + tunnel_overhead(p->tunnel) > 0xffff)
			return 0;
		/* only TCP can be cut behind us; and what GRE's checksum is over must be complete */
		if (face == FACE_SKB && ((gso && h->proto != P_TCP) || (partial && p->tunnel & TUNNEL_SUM)))
			return 0;
	}
	return sizes(p, h, gso, mtu);
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
	can = can_forward(face, p, &h, &f, gso, is_partial(&h, halves(k.w[0]) + halves(k.w[0] >> 32)), k.w[0] >> 32, 0);
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
	__u32 ports, addrs = 0;
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
#pragma unroll
	for (int i = 0; i < 4; i++)
		addrs += halves(k.w[i]) + halves(k.w[i] >> 32);
	can = can_forward(face, p, &h, &f, gso, is_partial(&h, addrs), k.w[1], k.w[0]);
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

/* A packet could not be changed as planned. What follows it goes up. */
static __always_inline void failed(const struct plan *p, struct tier_cpu *cpu)
{
	__u64 *word = entry_word(p, 0, 0);

	cpu->failed++;
	if (word)
		turn(word, READ64(word), p->reply, 0, cpu);
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
