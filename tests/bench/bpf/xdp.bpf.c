// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What XDP programs are measured with, as packets.bpf.c for tc.
 */
#include "bench.h"

#include <linux/udp.h>

/* Datagrams that have come to the end. */
struct bl_bench_arrivals {
	__u64 all;
	__u64 apart; /* not in the time of the task that sent them */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bl_bench_arrivals);
} bl_bench_arrived SEC(".maps");

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
	__u32 run, len = end - data;

	/* The run before has put headers before the packet. */
	if (len > BL_BENCH_FRAME) {
		if (bpf_xdp_adjust_head(xdp, len - BL_BENCH_FRAME))
			return XDP_ABORTED;
		data = (void *)(long)xdp->data;
		end = (void *)(long)xdp->data_end;
	}
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

/* Send a datagram by a device, as if it had been received. */
SEC("xdp")
int bl_bench_send(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	struct bl_bench_case *this = bl_bench_get();

	if (!this || data + BL_BENCH_DATAGRAM > end)
		return XDP_ABORTED;
	this->task = bpf_get_current_task();
	__builtin_memcpy(data, this->packet, BL_BENCH_DATAGRAM);
	if (!bl_bench_put(xdp, this->port_at, this->port_min + bl_bench_turn(this)))
		return XDP_ABORTED;
	return this->ifindex ? (int)bpf_redirect(this->ifindex, 0) : XDP_DROP;
}

/* Count and drop what has been sent; all else passes. */
SEC("xdp")
int bl_bench_sink(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *end = (void *)(long)xdp->data_end;
	const struct bl_bench_case *this = bl_bench_get();
	const struct iphdr *ip = data + ETH_HLEN;
	const struct udphdr *udp = (void *)(ip + 1);
	const struct ethhdr *eth = data;
	struct bl_bench_arrivals *arrived;
	__u32 zero = 0;

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_UDP || udp->dest != bpf_htons(BL_BENCH_SINK_PORT))
		return XDP_PASS;
	arrived = bpf_map_lookup_elem(&bl_bench_arrived, &zero);
	if (!this || !arrived)
		return XDP_ABORTED;
	__sync_fetch_and_add(&arrived->all, 1);
	if (this->task != bpf_get_current_task())
		__sync_fetch_and_add(&arrived->apart, 1);
	return XDP_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
