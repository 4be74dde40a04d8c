/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Fills a 60-byte UDP frame, or a TCP segment of that length, and sends it out of an interface. Driven by BPF_PROG_TEST_RUN with live frames, whose pages
 * come back with whatever the last receiver wrote, so the whole frame is written each time.
 *
 * Flow f has source port 1024 + f % 50000 and source address base + f / 50000.
 *
 * With a rate, frames are due at even distances. Who was kept from sending for longer than BURST frames take does not make
 * up for it: a burst would measure somebody's queue.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define WORDS 15
#define PORTS 50000
#define BURST 256

const volatile __u32 frame[WORDS]; /* source address and port, and both checksums, are filled in here */
const volatile __u32 ip_sum;       /* of the header without source address and checksum, host order */
const volatile __u32 l4_sum;       /* of pseudo-header, header and data without source address, port and checksum */
const volatile __u32 tcp;          /* 1: TCP, whose checksum is elsewhere */
const volatile __u32 source;       /* host order */
const volatile __u32 flows = 1;
const volatile __u32 ifindex;
const volatile __u64 limit; /* frames; 0: none */
const volatile __u64 rate;  /* frames a second; 0: as many as go */

struct state {
	__u64 sent;
	__u64 start; /* of the time that frames are due by, and what was sent before */
	__u64 before;
	__u64 first; /* when the first frame was sent, */
	__u64 last;  /* and the last one (with a rate or a limit) */
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
		if (due - s->sent > BURST) {
			s->start = now;
			s->before = s->sent;
		}
		s->last = now;
	} else if (limit && s->sent + 1 == limit) {
		s->last = bpf_ktime_get_ns();
	}
	if (!s->sent)
		s->first = bpf_ktime_get_ns();
	flow = s->sent++ % flows;
	port = 1024 + flow % PORTS;
	address = source + flow / PORTS;
#pragma unroll
	for (int i = 0; i < WORDS; i++)
		out[i] = frame[i];
	sum = (address >> 16) + (address & 0xffff);
	*(__be16 *)(bytes + 24) = bpf_htons(finish(ip_sum + sum));
	*(__be16 *)(bytes + 26) = bpf_htons(address >> 16);
	*(__be16 *)(bytes + 28) = bpf_htons(address);
	*(__be16 *)(bytes + 34) = bpf_htons(port);
	sum = finish(l4_sum + sum + port);
	if (tcp)
		*(__be16 *)(bytes + 50) = bpf_htons(sum);
	else
		*(__be16 *)(bytes + 40) = bpf_htons(sum ? sum : 0xffff);
	return bpf_redirect(ifindex, 0);
}

char _license[] SEC("license") = "GPL";
