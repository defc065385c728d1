/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What a packet is, from its headers.
 */
#pragma once

#include <stddef.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <beeline/frontend.h>

/*
 * Functions in the files that include this one are global (not static) where the
 * verifier is to check them once, and not for each call: the programs would else
 * take seconds to load. It then takes their pointers for ones that may be NULL.
 */

/* Flags in byte 13 of the TCP header. */
enum bl_tcp_flags {
	BL_TCP_FIN = 0x01,
	BL_TCP_SYN = 0x02,
	BL_TCP_RST = 0x04,
	BL_TCP_ACK = 0x10,
};

/* Flags of the IPv4 header, beside the offset of a fragment. */
enum bl_ip_flags {
	BL_IP_DONT_FRAGMENT = 0x4000,
	BL_IP_MORE_FRAGMENTS = 0x2000,
};

/* Which part of a datagram a packet is. */
enum bl_packet_part {
	BL_PACKET_WHOLE,
	BL_PACKET_FIRST, /* fragment */
	BL_PACKET_LATER, /* fragment: without ports */
};

/* Whether packets leave this network namespace's stack by a hook. */
static __always_inline bool bl_hook_leaves(enum bl_hook hook)
{
	return hook == BL_HOOK_EGRESS || hook == BL_HOOK_POD_EGRESS;
}

/* Clear what a key has beside addresses, ports and protocol. */
static __always_inline void bl_flow_key_clear(struct bl_flow_key *key)
{
	key->masquerade = 0;
	__builtin_memset(key->pad, 0, sizeof(key->pad));
}

/* Offsets are from the start of the packet data. */
struct bl_packet {
	struct bl_flow_key key; /* addresses, ports, protocol as they stand */
	__u16 l3;
	__u16 l4;
	__be32 fragment_id; /* 0 when whole */
	__u32 ifindex; /* of the device that it is at */
	__u32 seq; /* TCP: sequence number, and below what is acknowledged */
	__u32 ack;
	__u16 l4_len; /* by the IP header; cut off where the kernel has put many packets together */
	/* SCTP: of the segment that means the same to a connection. UDP: 0. */
	__u8 tcp_flags;
	__u8 ttl; /* or hop limit */
	bool ipv4;
	bool plain; /* read by bl_packet_plain */
	__u8 part; /* enum bl_packet_part */
	bool data; /* TCP: there is some */
	/* The packet is about to leave: what is answered comes in by the device. */
	bool leaves;
};

/* The first bytes of a TCP or UDP packet without options, as they lie in memory. */
struct bl_plain4 {
	struct iphdr ip;
	struct tcphdr tcp; /* UDP: its header and the first bytes of data */
};

struct bl_plain6 {
	struct ipv6hdr ip;
	struct tcphdr tcp;
};

/*
 * Write an address of IPv6 to @addr, which is BL_ALIGNED, by halves: it is read so, which
 * would stall after writes by words.
 */
static __always_inline void bl_addr_join(union bl_addr *addr, const __u32 *words)
{
	((__u64 *)addr)[0] = BL_JOINED(words[0], words[1]);
	((__u64 *)addr)[1] = BL_JOINED(words[2], words[3]);
}

/*
 * Whether one of a packet of IPv6's addresses is v4-mapped. No host sends such a packet, and here it
 * would be one of IPv4. Both are BL_ALIGNED.
 */
static __always_inline bool bl_packet_mapped(const union bl_addr *src, const union bl_addr *dst)
{
	return unlikely(bl_addr_is_ipv4(src) || bl_addr_is_ipv4(dst));
}

/*
 * Read the headers of a packet, of which the bytes from @data to @end lie in one piece,
 * with the network header of @protocol at @l3. For TCP and UDP packets without IP
 * options or extension headers; most are. False for all others: the slow way then
 * tells. Whether all of the packet is there is for the caller to see.
 */
static __always_inline bool bl_packet_plain(void *data, void *end, __u32 l3, __be16 protocol,
					    struct bl_packet *packet)
{
	const struct bl_plain4 *four = data + l3;
	const struct bl_plain6 *six = data + l3;
	const struct tcphdr *tcp;
	__u32 length, header;

	packet->l3 = l3;
	if (protocol == bpf_htons(ETH_P_IP)) {
		if ((void *)(four + 1) > end || *(const __u8 *)four != 0x45 ||
		    four->ip.frag_off & bpf_htons(0x3fff))
			return false;
		((__u64 *)&packet->key.src)[0] = 0;
		((__u64 *)&packet->key.src)[1] = BL_MAPPED(four->ip.saddr);
		((__u64 *)&packet->key.dst)[0] = 0;
		((__u64 *)&packet->key.dst)[1] = BL_MAPPED(four->ip.daddr);
		packet->key.proto = four->ip.protocol;
		packet->ttl = four->ip.ttl;
		packet->ipv4 = true;
		packet->l4 = l3 + sizeof(four->ip);
		length = bpf_ntohs(four->ip.tot_len) - sizeof(four->ip);
		tcp = &four->tcp;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		if ((void *)(six + 1) > end || *(const __u8 *)six >> 4 != 6)
			return false;
		bl_addr_join(&packet->key.src, six->ip.saddr.in6_u.u6_addr32);
		bl_addr_join(&packet->key.dst, six->ip.daddr.in6_u.u6_addr32);
		if (bl_packet_mapped(&packet->key.src, &packet->key.dst))
			return false;
		packet->key.proto = six->ip.nexthdr;
		packet->ttl = six->ip.hop_limit;
		packet->ipv4 = false;
		packet->l4 = l3 + sizeof(six->ip);
		length = bpf_ntohs(six->ip.payload_len);
		tcp = &six->tcp;
	} else {
		return false;
	}
	if (length < sizeof(*tcp) || length > 0xffff)
		return false;
	packet->l4_len = length;
	*(__u32 *)&packet->key.src_port = *(const __u32 *)tcp;
	if (packet->key.proto == IPPROTO_UDP) {
		packet->tcp_flags = 0;
		return true;
	}
	packet->tcp_flags = ((const __u8 *)tcp)[13];
	packet->seq = bpf_ntohl(tcp->seq);
	packet->ack = bpf_ntohl(tcp->ack_seq);
	header = ((const __u8 *)tcp)[12] >> 4 << 2;
	packet->data = header < length;
	return packet->key.proto == IPPROTO_TCP && header >= sizeof(*tcp) && header <= length;
}

/* New addresses and ports of a packet. */
struct bl_rewrite {
	union bl_addr src;
	union bl_addr dst;
	__be16 src_port;
	__be16 dst_port;
} BL_ALIGNED;

/* The sum of what changes between two runs of words, for bpf_l4_csum_replace. */
static __always_inline __u32 bl_csum_change(const __u32 *from, const __u32 *to, int words)
{
	__u64 sum = 0;

	for (int i = 0; i < words; i++)
		sum += (__u64)(__u32)~from[i] + to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)sum + (__u32)(sum >> 32);
}

/* The Internet checksum of a sum. */
static __always_inline __u16 bl_csum_fold(__s64 sum)
{
	__u32 folded = sum;

	folded = (folded & 0xffff) + (folded >> 16);
	folded = (folded & 0xffff) + (folded >> 16);
	return ~folded;
}

/*
 * The checksum field of TCP or UDP while the checksum is left to the sending device
 * (CHECKSUM_PARTIAL): the sum of the pseudo-header.
 */
static __always_inline __u16 bl_csum_unfinished(const struct bl_packet *packet)
{
	const __u32 none[8] = {};
	__u32 sum = bl_csum_change(none, (const __u32 *)&packet->key.src, 8);

	sum = (sum & 0xffff) + (sum >> 16) + bpf_htons(packet->key.proto) +
	      bpf_htons(packet->l4_len);
	return ~bl_csum_fold(sum);
}

/* Change the IPv4 header at @ip, with its checksum. */
static __always_inline void bl_plain_ipv4(struct iphdr *ip, const struct bl_rewrite *to,
					  __u32 change, bool hop)
{
	__u16 *life = (__u16 *)&ip->ttl;
	__u32 sum = (__u16)~ip->check + (change & 0xffff) + (change >> 16);

	if (hop) {
		sum += (__u16) ~*life;
		ip->ttl--;
		sum += *life;
	}
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
	ip->saddr = to->src.word[3];
	ip->daddr = to->dst.word[3];
}

static __always_inline void bl_plain_ipv6(struct ipv6hdr *ip, const struct bl_rewrite *to, bool hop)
{
	__builtin_memcpy(&ip->saddr, &to->src, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, &to->dst, sizeof(ip->daddr));
	if (hop)
		ip->hop_limit--;
}
