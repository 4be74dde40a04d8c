/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The end of frames that XDP has redirected: they are counted by the interface and dropped before the kernel makes a socket buffer of
 * them. On a veth that work would be the sender's, and no forwarder has it between two network cards.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp.frags")
int sink(struct xdp_md *ctx)
{
	return XDP_DROP;
}

char _license[] SEC("license") = "GPL";
