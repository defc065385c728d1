/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What tc and XDP programs are measured with alike.
 */
#pragma once

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>

#include <beeline/types.h>

enum bl_bench_limits {
	BL_BENCH_PACKET = 80, /* bytes that programs may change */
	BL_BENCH_FRAME = 128,
	BL_BENCH_DATAGRAM = 64, /* bytes of a frame that is sent */
	BL_BENCH_SINK_PORT = 8080,
	BL_BENCH_CASES = 16,
};

/* What is measured. */
struct bl_bench_case {
	__u8 packet[BL_BENCH_PACKET];
	__u32 program; /* index in bl_bench_next */
	/* Offset of the port, and of the end of the address, that each run changes; 0
	 * is none. */
	__u32 port_at;
	__u32 addr_at;
	__u32 port_min;
	__u32 ports; /* after so many another address is the next's */
	__u32 runs; /* those with port_at */
	__u32 turns; /* packets that take turns; 0 gives each run one of its own */
	__u32 ifindex; /* of the device that frames are sent by; 0 drops them */
	__u64 task; /* that sends */
	__u32 cb[2]; /* what the packet has in skb->cb */
};

/* The addresses and ports that the floor gives a packet. */
struct bl_bench_rewrite {
	union bl_addr src;
	union bl_addr dst;
	__be16 src_port;
	__be16 dst_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bl_bench_case);
} bl_bench_now SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, BL_BENCH_CASES);
	__type(key, __u32);
	__type(value, __u32);
} bl_bench_next SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct bl_flow_key);
	__type(value, struct bl_bench_rewrite);
} bl_bench_flow SEC(".maps");

/* Of the default size of bl_flow. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1 << 16);
	__type(key, struct bl_flow_key);
	__type(value, struct bl_flow_entry);
} bl_bench_lru SEC(".maps");

static __always_inline struct bl_bench_case *bl_bench_get(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bl_bench_now, &zero);
}

/* The number of the packet of the next run that changes it. */
static __always_inline __u32 bl_bench_turn(struct bl_bench_case *this)
{
	__u32 run = this->runs++;

	return this->turns ? run % this->turns : run;
}

/* Insert the two entries of a new flow. */
static __always_inline bool bl_bench_insert_both(void)
{
	const struct bl_bench_case *this = bl_bench_get();
	struct bl_flow_entry entry = {};
	struct bl_flow_key key = {};

	if (!this)
		return false;
	key.src.word[0] = this->runs;
	if (bpf_map_update_elem(&bl_bench_lru, &key, &entry, BPF_NOEXIST))
		return false;
	key.src.word[1] = 1;
	return !bpf_map_update_elem(&bl_bench_lru, &key, &entry, BPF_ANY);
}

/* What @sum becomes when the words @from of what it covers become @to. */
static __always_inline __u64 bl_bench_sum(__u64 sum, const __u32 *from, const __u32 *to,
					  __u32 words)
{
	for (__u32 i = 0; i < words; i++)
		sum += (__u64)(__u32)~from[i] + to[i];
	return sum;
}

static __always_inline __u16 bl_bench_fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Give the segment new ports and the checksum @sum, which covers its addresses. */
static __always_inline void bl_bench_ports(struct tcphdr *tcp, const struct bl_bench_rewrite *to,
					   __u64 sum)
{
	__u32 from_ports = *(__u32 *)&tcp->source;
	__u32 to_ports = *(__u32 *)&to->src_port;

	tcp->check = ~bl_bench_fold(bl_bench_sum(sum, &from_ports, &to_ports, 1));
	*(__u32 *)&tcp->source = to_ports;
}

static __always_inline bool bl_bench_ipv4(struct iphdr *ip, void *end)
{
	struct bl_flow_key key = {.proto = IPPROTO_TCP};
	struct tcphdr *tcp = (void *)(ip + 1);
	const struct bl_bench_rewrite *to;
	__u32 addrs[2];

	if ((void *)(tcp + 1) > end || ip->version != 4 || ip->ihl != 5 ||
	    ip->protocol != IPPROTO_TCP || ip->frag_off & bpf_htons(0x3fff))
		return false;
	key.src.word[2] = key.dst.word[2] = bpf_htonl(0xffff);
	key.src.word[3] = ip->saddr;
	key.dst.word[3] = ip->daddr;
	key.src_port = tcp->source;
	key.dst_port = tcp->dest;
	to = bpf_map_lookup_elem(&bl_bench_flow, &key);
	if (!to)
		return false;
	addrs[0] = to->src.word[3];
	addrs[1] = to->dst.word[3];
	bl_bench_ports(tcp, to, bl_bench_sum((__u16)~tcp->check, &ip->saddr, addrs, 2));
	ip->check = ~bl_bench_fold(bl_bench_sum((__u16)~ip->check, &ip->saddr, addrs, 2));
	ip->saddr = addrs[0];
	ip->daddr = addrs[1];
	return true;
}

static __always_inline bool bl_bench_ipv6(struct ipv6hdr *ip, void *end)
{
	struct bl_flow_key key = {.proto = IPPROTO_TCP};
	struct tcphdr *tcp = (void *)(ip + 1);
	const struct bl_bench_rewrite *to;
	const __u32 *from;

	if ((void *)(tcp + 1) > end || ip->version != 6 || ip->nexthdr != IPPROTO_TCP)
		return false;
	__builtin_memcpy(&key.src, &ip->saddr, sizeof(key.src));
	__builtin_memcpy(&key.dst, &ip->daddr, sizeof(key.dst));
	key.src_port = tcp->source;
	key.dst_port = tcp->dest;
	to = bpf_map_lookup_elem(&bl_bench_flow, &key);
	if (!to)
		return false;
	from = (const __u32 *)&ip->saddr;
	bl_bench_ports(tcp, to, bl_bench_sum((__u16)~tcp->check, from, to->src.word, 8));
	__builtin_memcpy(&ip->saddr, &to->src, 2 * sizeof(to->src));
	return true;
}

/* The least that any translation does: parse, one lookup, rewrite, checksums. */
static __always_inline bool bl_bench_translate(void *ip, void *end, __be16 protocol)
{
	if (protocol == bpf_htons(ETH_P_IP))
		return bl_bench_ipv4(ip, end);
	return protocol == bpf_htons(ETH_P_IPV6) && bl_bench_ipv6(ip, end);
}
