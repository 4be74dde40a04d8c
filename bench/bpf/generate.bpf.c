/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Writes the headers of a UDP frame, or of a TCP segment, and sends it out of an interface. Driven by BPF_PROG_TEST_RUN with live
 * frames, whose pages come back with whatever the last receiver wrote into the headers, so these are written each time.
 *
 * Each flow has its turn once in a round. Rounds differ in their order: in the first all come one after the other, later ones take long
 * strides, or a forwarder would find connections in its memory in the order in which it made them, which no real traffic has.
 *
 * Flow f has source port 1024 + f % 50000, and base + f / 50000 as (the last 32 bits of) its source address.
 *
 * With a rate, frames are due at even distances. Who was kept from sending for longer than `burst` frames take does not make
 * up for it: a burst would measure somebody's queue.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define WORDS 15 /* of IPv4; of IPv6 one more */
#define PORTS 50000

const volatile __u32 frame[WORDS + 1]; /* source address and port, and checksums, are filled in here */
const volatile __u32 v6;
const volatile __u32 ip_sum;       /* of the header without source address and checksum, host order */
const volatile __u32 l4_sum;       /* of pseudo-header, header and data without source address, port and checksum */
const volatile __u32 tcp;          /* 1: TCP, whose checksum is elsewhere */
const volatile __u32 source;       /* its last 32 bits, host order */
const volatile __u32 flows = 1;
const volatile __u32 strides[8];   /* less than flows, and without a divisor in common */
const volatile __u32 ifindex;
const volatile __u64 limit; /* frames; 0: none */
const volatile __u64 rate;  /* frames a second; 0: as many as go */
const volatile __u64 burst = 256;

struct state {
	__u64 sent;
	__u64 start; /* of the time that frames are due by, and what was sent before */
	__u64 before;
	__u64 first; /* when the first frame was sent, */
	__u64 last;  /* and the last one (with a rate or a limit) */
	__u32 flow;  /* of the last frame */
	__u32 left;  /* in this round */
	__u32 round;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} state SEC(".maps");

static __always_inline __u16 finish(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline void put(__u8 *at, __u32 value)
{
	*(__be16 *)at = bpf_htons(value);
}

/* The next frame's flow. */
static __always_inline __u32 next_flow(struct state *s)
{
	__u32 flow;

	if (!s->left) {
		s->left = flows;
		s->round++;
	}
	s->left--;
	flow = s->flow + strides[(s->round - 1) & 7];
	if (flow >= flows || flow < s->flow)
		flow -= flows;
	s->flow = flow;
	return flow;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 *out = data, zero = 0, flow, address, port, sum;
	struct state *s = bpf_map_lookup_elem(&state, &zero);
	__u8 *bytes = data;

	if (!s || data + WORDS * 4 > end)
		return XDP_ABORTED;
	if (limit && s->sent >= limit)
		return XDP_DROP;
	if (rate) {
		__u64 now = bpf_ktime_get_ns(), due;

		if (!s->start)
			s->start = now;
		due = s->before + (now - s->start) / 1000 * rate / 1000000;
		if (s->sent > due)
			return XDP_DROP;
		if (due - s->sent > burst) {
			s->start = now;
			s->before = s->sent;
		}
		s->last = now;
	} else if (limit && s->sent + 1 == limit) {
		s->last = bpf_ktime_get_ns();
	}
	if (!s->sent)
		s->first = bpf_ktime_get_ns();
	s->sent++;
	flow = next_flow(s);
	port = 1024 + flow % PORTS;
	address = source + flow / PORTS;
#pragma unroll
	for (int i = 0; i < WORDS; i++)
		out[i] = frame[i];
	sum = (address >> 16) + (address & 0xffff);
	if (v6) {
		if (data + (WORDS + 1) * 4 > end)
			return XDP_ABORTED;
		out[WORDS] = frame[WORDS];
		put(bytes + 34, address >> 16);
		put(bytes + 36, address);
		put(bytes + 54, port);
		sum = finish(l4_sum + sum + port);
		put(bytes + 60, sum ? sum : 0xffff);
		return bpf_redirect(ifindex, 0);
	}
	put(bytes + 24, finish(ip_sum + sum));
	put(bytes + 26, address >> 16);
	put(bytes + 28, address);
	put(bytes + 34, port);
	sum = finish(l4_sum + sum + port);
	if (tcp)
		put(bytes + 50, sum);
	else
		put(bytes + 40, sum ? sum : 0xffff);
	return bpf_redirect(ifindex, 0);
}

char _license[] SEC("license") = "GPL";
