// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * What tc programs are measured with. bl_bench_run gives the packet its bytes
 * again and goes on with the program that is measured, so that each run of a
 * repeated test sees the same packet and what runs is the program as it is shipped.
 */
#include "bench.h"

#include <linux/pkt_cls.h>

SEC("tc")
int bl_bench_run(struct __sk_buff *skb)
{
	struct bl_bench_case *this = bl_bench_get();
	__be16 port, addr;
	__u32 run;

	if (!this || bpf_skb_store_bytes(skb, 0, this->packet, sizeof(this->packet), 0))
		return TC_ACT_SHOT;
	skb->cb[0] = this->cb[0];
	skb->cb[1] = this->cb[1];
	if (this->port_at) {
		run = bl_bench_turn(this);
		port = bpf_htons(this->port_min + run % this->ports);
		addr = bpf_htons(run / this->ports);
		if (bpf_skb_store_bytes(skb, this->port_at, &port, sizeof(port), 0))
			return TC_ACT_SHOT;
		if (this->addr_at &&
		    bpf_skb_store_bytes(skb, this->addr_at, &addr, sizeof(addr), 0))
			return TC_ACT_SHOT;
	}
	bpf_tail_call(skb, &bl_bench_next, this->program);
	return TC_ACT_SHOT;
}

SEC("tc")
int bl_bench_empty(struct __sk_buff *skb __attribute__((unused)))
{
	return TC_ACT_OK;
}

SEC("tc")
int bl_bench_insert(struct __sk_buff *skb __attribute__((unused)))
{
	return bl_bench_insert_both() ? TC_ACT_OK : TC_ACT_SHOT;
}

SEC("tc")
int bl_bench_floor(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	return bl_bench_translate(data + ETH_HLEN, end, skb->protocol) ? TC_ACT_OK : TC_ACT_SHOT;
}

char _license[] SEC("license") = "Dual BSD/GPL";
