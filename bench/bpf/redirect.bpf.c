/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The yardstick of the tier at XDP: sends each IP packet out of an interface with other MAC addresses, and does nothing else.
 */
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

const volatile __u16 macs[6]; /* destination and source, as they lie in the frame */
const volatile __u32 ifindex;

SEC("xdp.frags")
int redirect(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u16 *out = data;

	if (data + 14 > end)
		return XDP_PASS;
	if (out[6] != bpf_htons(0x0800) && out[6] != bpf_htons(0x86dd))
		return XDP_PASS;
#pragma unroll
	for (int i = 0; i < 6; i++)
		out[i] = macs[i];
	return bpf_redirect(ifindex, 0);
}

char _license[] SEC("license") = "GPL";
