// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What XDP programs are measured with, as packets.bpf.c for tc.
 */
#include "bench.h"

/* Write @value at @at, which is inside of the bytes that programs may change. */
static __always_inline bool bl_bench_put(struct xdp_md *xdp, __u32 at, __u16 value)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	__be16 *place;

	if (at > BL_BENCH_PACKET)
		return false;
	place = data + at;
	if ((void *)(place + 1) > end)
		return false;
	*place = bpf_htons(value);
	return true;
}

SEC("xdp.frags")
int bl_bench_run(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct bl_bench_case *this = bl_bench_get();
	__u32 run;

	if (!this || data + BL_BENCH_PACKET > end)
		return XDP_ABORTED;
	__builtin_memcpy(data, this->packet, BL_BENCH_PACKET);
	if (this->port_at) {
		run = bl_bench_turn(this);
		if (!bl_bench_put(xdp, this->port_at, this->port_min + run % this->ports))
			return XDP_ABORTED;
		if (this->addr_at && !bl_bench_put(xdp, this->addr_at, run / this->ports))
			return XDP_ABORTED;
	}
	bpf_tail_call(xdp, &bl_bench_next, this->program);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int bl_bench_empty(struct xdp_md *xdp __attribute__((unused)))
{
	return XDP_PASS;
}

SEC("xdp.frags")
int bl_bench_insert(struct xdp_md *xdp __attribute__((unused)))
{
	return bl_bench_insert_both() ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp.frags")
int bl_bench_floor(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	const struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return XDP_ABORTED;
	return bl_bench_translate(data + ETH_HLEN, end, eth->h_proto) ? XDP_TX : XDP_ABORTED;
}

char _license[] SEC("license") = "Dual BSD/GPL";
