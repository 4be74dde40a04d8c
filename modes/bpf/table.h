/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The director's connection table as BPF programs read it. Its layout is described in docs/table.md and written down for
 * the core in src/conn/layout.rs; this file must agree with both.
 *
 * Only 64-bit words are read, each once, by volatile reads: the core publishes an entry by storing word 0 last and takes
 * it back by clearing word 0 first, so that words read between two equal reads of word 0 belong together (x86-64 keeps
 * loads in order and stores in order).
 */
#ifndef LVSD_TABLE_H
#define LVSD_TABLE_H

#define LVSD_BUCKET_WORDS 8
#define LVSD_PAIR_OUT (1ULL << 31)
#define LVSD_SLOT_MASK 0x7fffffffU
#define LVSD_LIVE (1ULL << 31)
#define LVSD_IDENTITY ((0xffffffULL << 40) | LVSD_LIVE)
#define LVSD_KIND_TEMPLATE 0x80
#define LVSD_KIND_OUT 0x40

struct bucket {
	__u64 pair[LVSD_BUCKET_WORDS];
};

struct entry_v4 {
	__u64 w[8];
};

struct entry_v6 {
	__u64 w[16];
};

/* The loader sets the numbers of buckets and slots. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct bucket);
} index_v4 SEC(".maps"), index_v6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entry_v4);
} entries_v4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct entry_v6);
} entries_v6 SEC(".maps");

/* Set by the loader before the programs are checked. */
const volatile __u64 hash_key_0 = 0;
const volatile __u64 hash_key_1 = 0;
const volatile __u32 buckets_v4 = 2;
const volatile __u32 buckets_v6 = 2;

#define READ64(p) (*(const volatile __u64 *)(p))
#define barrier() asm volatile("" ::: "memory")

/* SipHash-1-3 (Aumasson, Bernstein) over whole words. */
#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define SIPROUND(v0, v1, v2, v3)                                                                                       \
	do {                                                                                                           \
		v0 += v1;                                                                                              \
		v1 = ROTL(v1, 13) ^ v0;                                                                                \
		v0 = ROTL(v0, 32);                                                                                     \
		v2 += v3;                                                                                              \
		v3 = ROTL(v3, 16) ^ v2;                                                                                \
		v0 += v3;                                                                                              \
		v3 = ROTL(v3, 21) ^ v0;                                                                                \
		v2 += v1;                                                                                              \
		v1 = ROTL(v1, 17) ^ v2;                                                                                \
		v2 = ROTL(v2, 32);                                                                                     \
	} while (0)

static __always_inline __u64 siphash13(const __u64 *m, const int n)
{
	__u64 v0 = hash_key_0 ^ 0x736f6d6570736575ULL;
	__u64 v1 = hash_key_1 ^ 0x646f72616e646f6dULL;
	__u64 v2 = hash_key_0 ^ 0x6c7967656e657261ULL;
	__u64 v3 = hash_key_1 ^ 0x7465646279746573ULL;
	__u64 last = (__u64)(n * 8) << 56;

#pragma unroll
	for (int i = 0; i < n; i++) {
		v3 ^= m[i];
		SIPROUND(v0, v1, v2, v3);
		v0 ^= m[i];
	}
	v3 ^= last;
	SIPROUND(v0, v1, v2, v3);
	v0 ^= last;
	v2 ^= 0xff;
#pragma unroll
	for (int i = 0; i < 3; i++)
		SIPROUND(v0, v1, v2, v3);
	return v0 ^ v1 ^ v2 ^ v3;
}

static __always_inline __u32 hash_tag(__u64 hash)
{
	__u32 tag = hash >> 32;

	return tag ? tag : 1;
}

static __always_inline __u32 first_bucket(__u64 hash, __u32 n)
{
	return ((hash & 0xffffffffULL) * n) >> 32;
}

static __always_inline __u32 other_bucket(__u32 b, __u32 tag, __u32 n)
{
	__u64 f = ((__u64)tag * n) >> 32;

	return f >= b ? f - b : f + n - b;
}

/* What a key looks like: the words that are hashed. The last one: source port:16 | destination port:16 | protocol:8. */
struct key_v4 {
	__u64 w[2];
};

struct key_v6 {
	__u64 w[5];
};

static __always_inline __u64 key_ports(__u16 sport, __u16 dport, __u8 proto)
{
	return (__u64)sport << 48 | (__u64)dport << 32 | proto;
}

/* Ports words: client:16 | virtual:16 | real:16 | protocol:8 | kind:8. Their key words, one for each direction. */
static __always_inline __u64 ports_in(__u64 ports)
{
	return (ports & 0xffffffff00000000ULL) | ((ports >> 8) & 0xff);
}

static __always_inline __u64 ports_out(__u64 ports)
{
	return ((ports << 32) & 0xffff000000000000ULL) | ((ports >> 16) & 0x0000ffff00000000ULL) | ((ports >> 8) & 0xff);
}

/*
 * An entry's words that readers want, as they were at one time: each is read once, between two reads of word 0. The words behind
 * these are only counted in.
 */
struct read_v4 {
	__u64 w[6];
};

struct read_v6 {
	__u64 w[11];
};

/* Reads the entry of a pair if it is there, and has this key in the pair's direction. */
static __always_inline int entry_read_v4(__u64 pair, const struct key_v4 *key, struct read_v4 *r)
{
	__u32 slot = pair & LVSD_SLOT_MASK;
	struct entry_v4 *e = bpf_map_lookup_elem(&entries_v4, &slot);

	if (!e)
		return 0;
	r->w[0] = READ64(&e->w[0]);
	barrier();
	r->w[1] = READ64(&e->w[1]);
	r->w[2] = READ64(&e->w[2]);
	r->w[3] = READ64(&e->w[3]);
	r->w[4] = READ64(&e->w[4]);
	r->w[5] = READ64(&e->w[5]);
	barrier();
	if (!(r->w[0] & LVSD_LIVE) || ((r->w[0] ^ READ64(&e->w[0])) & LVSD_IDENTITY) || (r->w[2] & LVSD_KIND_TEMPLATE))
		return 0;
	if (pair & LVSD_PAIR_OUT)
		return (r->w[2] & LVSD_KIND_OUT) && key->w[0] == ((r->w[3] & 0xffffffff00000000ULL) | r->w[1] >> 32) &&
		       key->w[1] == ports_out(r->w[2]);
	return key->w[0] == r->w[1] && key->w[1] == ports_in(r->w[2]);
}

static __always_inline int entry_read_v6(__u64 pair, const struct key_v6 *key, struct read_v6 *r)
{
	__u32 slot = pair & LVSD_SLOT_MASK;
	struct entry_v6 *e = bpf_map_lookup_elem(&entries_v6, &slot);

	if (!e)
		return 0;
	r->w[0] = READ64(&e->w[0]);
	barrier();
#pragma unroll
	for (int i = 1; i < 11; i++)
		r->w[i] = READ64(&e->w[i]);
	barrier();
	if (!(r->w[0] & LVSD_LIVE) || ((r->w[0] ^ READ64(&e->w[0])) & LVSD_IDENTITY) || (r->w[7] & LVSD_KIND_TEMPLATE))
		return 0;
	/* the server's end, or the virtual one */
	if (pair & LVSD_PAIR_OUT)
		return (r->w[7] & LVSD_KIND_OUT) && key->w[0] == r->w[5] && key->w[1] == r->w[6] && key->w[2] == r->w[1] &&
		       key->w[3] == r->w[2] && key->w[4] == ports_out(r->w[7]);
	return key->w[0] == r->w[1] && key->w[1] == r->w[2] && key->w[2] == r->w[3] && key->w[3] == r->w[4] &&
	       key->w[4] == ports_in(r->w[7]);
}

/*
 * The pair of a flow's key, of either direction: tag:32 (never 0), direction:1, slot:31; 0 where the table does not have it. A pair
 * that is being moved stands in both its buckets for a while; so that a move from the second to the first between our two
 * looks is not missed, the first is looked at again.
 *
 * find_* says no more. read_* gives what the entry says, too, and looks among the pairs that this processor has found last (`hot`)
 * before it looks in the index: of a large table's index each flow of a few has a line, and mostly a page, of its own. What is found there
 * is as good as what the index says, for it is the entry that is compared; a pair of a connection that is gone finds none.
 *
 * A function that is not static is verified once, whatever its callers know; Linux 6.1 would otherwise follow it from every state
 * of theirs, and give up.
 */
#define HOT_LINES 8192 /* for each processor; a power of two */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} hot SEC(".maps");

static __always_inline struct bucket *hot_line(__u64 hash)
{
	__u32 at = bpf_get_smp_processor_id() * HOT_LINES + (hash & (HOT_LINES - 1));

	return bpf_map_lookup_elem(&hot, &at);
}

/* Puts a pair before the others of its line; the last one falls out. */
static __always_inline void heat(struct bucket *line, __u64 pair)
{
#pragma unroll
	for (int i = LVSD_BUCKET_WORDS - 1; i > 0; i--)
		line->pair[i] = line->pair[i - 1];
	line->pair[0] = pair;
}

#define DEFINE_LOOKUP(fam, words)                                                                                      \
	static __always_inline __u64 look_up_##fam(const struct key_##fam *key, __u64 hash, struct read_##fam *r)       \
	{                                                                                                              \
		__u32 tag = hash_tag(hash), b = first_bucket(hash, buckets_##fam);                                     \
                                                                                                                       \
		for (int look = 0; look < 3; look++) {                                                                 \
			struct bucket *bucket = bpf_map_lookup_elem(&index_##fam, &b);                                 \
                                                                                                                       \
			if (!bucket)                                                                                   \
				return 0;                                                                              \
			for (int i = 0; i < LVSD_BUCKET_WORDS; i++) {                                                  \
				__u64 pair = READ64(&bucket->pair[i]);                                                 \
                                                                                                                       \
				if (pair >> 32 == tag && entry_read_##fam(pair, key, r))                               \
					return pair;                                                                   \
			}                                                                                              \
			b = other_bucket(b, tag, buckets_##fam);                                                       \
		}                                                                                                      \
		return 0;                                                                                              \
	}                                                                                                              \
                                                                                                                       \
	static __always_inline __u64 look_up_hot_##fam(const struct key_##fam *key, struct read_##fam *r)               \
	{                                                                                                              \
		__u64 hash = siphash13(key->w, words), pair;                                                           \
		struct bucket *line = hot_line(hash);                                                                  \
		__u32 tag = hash_tag(hash);                                                                            \
                                                                                                                       \
		if (!line)                                                                                             \
			return look_up_##fam(key, hash, r);                                                            \
		for (int i = 0; i < LVSD_BUCKET_WORDS; i++) {                                                          \
			pair = line->pair[i];                                                                          \
			if (pair >> 32 == tag && entry_read_##fam(pair, key, r))                                       \
				return pair;                                                                           \
		}                                                                                                      \
		pair = look_up_##fam(key, hash, r);                                                                    \
		if (pair)                                                                                              \
			heat(line, pair);                                                                              \
		return pair;                                                                                           \
	}                                                                                                              \
                                                                                                                       \
	__noinline __u64 find_##fam(const struct key_##fam *key)                                                        \
	{                                                                                                              \
		struct read_##fam r;                                                                                   \
                                                                                                                       \
		return key ? look_up_##fam(key, siphash13(key->w, words), &r) : 0;                                     \
	}                                                                                                              \
                                                                                                                       \
	__noinline __u64 read_##fam(const struct key_##fam *key, struct read_##fam *r)                                 \
	{                                                                                                              \
		return key && r ? look_up_hot_##fam(key, r) : 0;                                                       \
	}

DEFINE_LOOKUP(v4, 2)
DEFINE_LOOKUP(v6, 5)

#endif
