/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that the node answers itself: a TCP reset, or an ICMP error that quotes
 * the IP header and eight bytes of what it is about (RFC 792, RFC 4443). The
 * answer takes the place of the packet and leaves by the device it came in by.
 *
 * Each function returns the action for the packet: it is dropped where an answer
 * cannot be made of it, as of one with IP options.
 */
#pragma once

#include <beeline/flow_table.h>
#include <beeline/skb.h>

#define BL_ANSWER_TTL 64

/* How many ICMP errors are sent in a slice of time at most, but for those that say a size. */
volatile const __u32 bl_answer_limit = ~0U;

/* The errors, by their names in the RFCs; linux/icmp.h needs a C library. */
enum bl_icmp_number {
	BL_ICMP4_UNREACHABLE = 3,
	BL_ICMP4_PORT = 3,
	BL_ICMP4_TOO_BIG = 4,
	BL_ICMP4_TIME_EXCEEDED = 11,
	BL_ICMP6_UNREACHABLE = 1,
	BL_ICMP6_TOO_BIG = 2,
	BL_ICMP6_PORT = 4,
	BL_ICMP6_TIME_EXCEEDED = 3,
	BL_ICMP_HOP_LIMIT = 0,
};

struct bl_icmp {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 info; /* unused, or the MTU */
};

struct bl_answer_icmp4 {
	struct iphdr ip;
	struct bl_icmp icmp;
	__u8 quote[sizeof(struct iphdr) + 8];
};

struct bl_answer_icmp6 {
	struct ipv6hdr ip;
	struct bl_icmp icmp;
	__u8 quote[sizeof(struct ipv6hdr) + 8 + 8]; /* there may be a fragment's header */
};

struct bl_answer_reset4 {
	struct iphdr ip;
	struct tcphdr tcp;
};

struct bl_answer_reset6 {
	struct ipv6hdr ip;
	struct tcphdr tcp;
};

/* What TCP and ICMPv6 checksums cover besides the segment. */
struct bl_pseudo4 {
	__be32 src;
	__be32 dst;
	__u8 zero;
	__u8 proto;
	__be16 len;
};

struct bl_pseudo6 {
	struct in6_addr src;
	struct in6_addr dst;
	__be32 len;
	__u8 zero[3];
	__u8 proto;
};

/*
 * Swap the MAC addresses and send the packet back where it came from: out by the
 * device, or with @leaves in by it. A tunnel with many ends, as Calico's tunl0, takes the end from
 * the route that the kernel notes at the packet; of IPv4, one by the device is always found.
 */
static __always_inline int bl_answer_return(struct __sk_buff *skb, __u32 l3, bool leaves)
{
	__u8 from[2 * ETH_ALEN], to[2 * ETH_ALEN];

	if (l3) {
		if (bpf_skb_load_bytes(skb, 0, from, sizeof(from)))
			return TC_ACT_SHOT;
		__builtin_memcpy(to, from + ETH_ALEN, ETH_ALEN);
		__builtin_memcpy(to + ETH_ALEN, from, ETH_ALEN);
		if (bpf_skb_store_bytes(skb, 0, to, sizeof(to), 0))
			return TC_ACT_SHOT;
	} else if (!leaves && skb->protocol == bpf_htons(ETH_P_IP)) {
		return bl_skb_send(skb, l3, skb->ifindex, NULL);
	}
	return bpf_redirect(skb->ifindex, leaves ? BPF_F_INGRESS : 0);
}

/*
 * Make the packet @len bytes long from its network header on and write them. @sum is
 * that of the pseudo-header.
 *
 * When the packet's checksum is left to the sending device (CHECKSUM_PARTIAL), so is the
 * answer's: two bytes of it, at the same place, may be replaced by the sum of the bytes
 * behind the IP header, or may be not. Where they are the answer's own checksum, or
 * @free for any use, they hold the pseudo-header's sum until then, and are right, or
 * zero, afterwards. Else two bytes behind the end of the answer make the sum what is
 * there; that holds as far as the next router, which cuts them off.
 */
static __always_inline int bl_answer_write(struct __sk_buff *skb, const struct bl_packet *packet,
					   const void *bytes, __u32 len, __s64 sum, bool free)
{
	__u64 flags;
	__u32 at = bl_packet_checksum(packet, &flags);
	bool unsummed = at && bl_packet_unsummed(skb, at);
	__u16 start = ~bl_csum_fold(sum), there;

	if (bpf_skb_change_tail(skb, packet->l3 + len + (unsummed && !free ? sizeof(there) : 0), 0))
		return TC_ACT_SHOT;
	if (bpf_skb_store_bytes(skb, packet->l3, bytes, len,
				BPF_F_INVALIDATE_HASH | BPF_F_RECOMPUTE_CSUM))
		return TC_ACT_SHOT;
	if (unsummed && free) {
		if (bpf_skb_store_bytes(skb, at, &start, sizeof(start), 0))
			return TC_ACT_SHOT;
	} else if (unsummed) {
		if (bpf_skb_load_bytes(skb, at, &there, sizeof(there)))
			return TC_ACT_SHOT;
		there = ~bl_csum_fold((__u32)(__u16)~there + start);
		if (bpf_skb_store_bytes(skb, packet->l3 + len, &there, sizeof(there), 0))
			return TC_ACT_SHOT;
	}
	return bl_answer_return(skb, packet->l3, packet->leaves);
}

static __always_inline void bl_answer_ipv4(struct iphdr *ip, __u8 proto, __u16 len, __be32 src,
					   __be32 dst)
{
	ip->version = 4;
	ip->ihl = 5;
	ip->tot_len = bpf_htons(len);
	ip->frag_off = bpf_htons(BL_IP_DONT_FRAGMENT);
	ip->ttl = BL_ANSWER_TTL;
	ip->protocol = proto;
	ip->saddr = src;
	ip->daddr = dst;
	ip->check = bl_csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
}

static __always_inline void bl_answer_ipv6(struct ipv6hdr *ip, __u8 proto, __u16 len,
					   const union bl_addr *src, const union bl_addr *dst)
{
	ip->version = 6;
	ip->payload_len = bpf_htons(len);
	ip->nexthdr = proto;
	ip->hop_limit = BL_ANSWER_TTL;
	__builtin_memcpy(&ip->saddr, src, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, dst, sizeof(ip->daddr));
}

/* The sum over the pseudo-header of a segment of @len bytes. */
static __always_inline __s64 bl_answer_pseudo6(const struct ipv6hdr *ip, __u32 len)
{
	struct bl_pseudo6 pseudo = {
		.len = bpf_htonl(len),
		.proto = ip->nexthdr,
	};

	__builtin_memcpy(&pseudo.src, &ip->saddr, sizeof(pseudo.src));
	__builtin_memcpy(&pseudo.dst, &ip->daddr, sizeof(pseudo.dst));
	return bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
}

/*
 * Whether an error about @packet says nothing where the packet has its checksum: that of
 * UDP lies where errors have the MTU, if they have one; that of TCP in the quote.
 */
static __always_inline bool bl_answer_free(const struct bl_packet *packet,
					   const struct bl_icmp *error)
{
	return packet->key.proto == IPPROTO_UDP && !error->info;
}

/* Global, as that of IPv6: the kernel checks them once, not for each error. */
__noinline int bl_answer_icmp4(struct __sk_buff *skb, const struct bl_packet *packet,
			       const union bl_addr *source, const struct bl_icmp *error)
{
	struct bl_answer_icmp4 answer = {};
	__u32 len = sizeof(answer.icmp) + sizeof(answer.quote);

	if (!packet || !source || !error)
		return TC_ACT_SHOT;
	if (packet->l4 != packet->l3 + sizeof(struct iphdr))
		return TC_ACT_SHOT;
	if (bpf_skb_load_bytes(skb, packet->l3, answer.quote, sizeof(answer.quote)))
		return TC_ACT_SHOT;
	bl_answer_ipv4(&answer.ip, IPPROTO_ICMP, sizeof(answer), source->word[3],
		       packet->key.src.word[3]);
	answer.icmp = *error;
	answer.icmp.checksum = bl_csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.icmp, len, 0));
	return bl_answer_write(skb, packet, &answer, sizeof(answer), 0,
			       bl_answer_free(packet, error));
}

__noinline int bl_answer_icmp6(struct __sk_buff *skb, const struct bl_packet *packet,
			       const union bl_addr *source, const struct bl_icmp *error)
{
	struct bl_answer_icmp6 answer = {};
	__u32 quote = sizeof(answer.quote) - 8;
	__u32 len;
	__s64 sum;

	if (!packet || !source || !error)
		return TC_ACT_SHOT;
	if (packet->part == BL_PACKET_FIRST)
		quote += 8;
	if (packet->l4 + 8 != packet->l3 + quote)
		return TC_ACT_SHOT;
	if (bpf_skb_load_bytes(skb, packet->l3, answer.quote, quote))
		return TC_ACT_SHOT;
	len = sizeof(answer.icmp) + quote;
	bl_answer_ipv6(&answer.ip, IPPROTO_ICMPV6, len, source, &packet->key.src);
	answer.icmp = *error;
	sum = bl_answer_pseudo6(&answer.ip, len);
	answer.icmp.checksum =
		bl_csum_fold(bpf_csum_diff(NULL, 0, (__be32 *)&answer.icmp, len, sum));
	return bl_answer_write(skb, packet, &answer, sizeof(answer.ip) + len, sum,
			       bl_answer_free(packet, error));
}

/* Fill a reset that answers a SYN. */
static __always_inline bool bl_answer_tcp(struct __sk_buff *skb, const struct bl_packet *packet,
					  struct tcphdr *reset)
{
	struct tcphdr syn;

	if (bpf_skb_load_bytes(skb, packet->l4, &syn, sizeof(syn)))
		return false;
	reset->source = syn.dest;
	reset->dest = syn.source;
	reset->ack_seq = bpf_htonl(bpf_ntohl(syn.seq) + 1);
	reset->doff = sizeof(*reset) / 4;
	reset->rst = 1;
	reset->ack = 1;
	return true;
}

static __noinline int bl_answer_reset4(struct __sk_buff *skb, const struct bl_packet *packet)
{
	struct bl_answer_reset4 answer = {};
	struct bl_pseudo4 pseudo = {
		.src = packet->key.dst.word[3],
		.dst = packet->key.src.word[3],
		.proto = IPPROTO_TCP,
		.len = bpf_htons(sizeof(answer.tcp)),
	};
	__s64 sum;

	if (!bl_answer_tcp(skb, packet, &answer.tcp))
		return TC_ACT_SHOT;
	bl_answer_ipv4(&answer.ip, IPPROTO_TCP, sizeof(answer), pseudo.src, pseudo.dst);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&pseudo, sizeof(pseudo), 0);
	answer.tcp.check = bl_csum_fold(
		bpf_csum_diff(NULL, 0, (__be32 *)&answer.tcp, sizeof(answer.tcp), sum));
	return bl_answer_write(skb, packet, &answer, sizeof(answer), sum, true);
}

static __noinline int bl_answer_reset6(struct __sk_buff *skb, const struct bl_packet *packet)
{
	struct bl_answer_reset6 answer = {};
	__s64 sum;

	if (!bl_answer_tcp(skb, packet, &answer.tcp))
		return TC_ACT_SHOT;
	bl_answer_ipv6(&answer.ip, IPPROTO_TCP, sizeof(answer.tcp), &packet->key.dst,
		       &packet->key.src);
	sum = bl_answer_pseudo6(&answer.ip, sizeof(answer.tcp));
	answer.tcp.check = bl_csum_fold(
		bpf_csum_diff(NULL, 0, (__be32 *)&answer.tcp, sizeof(answer.tcp), sum));
	return bl_answer_write(skb, packet, &answer, sizeof(answer), sum, true);
}

static __always_inline struct bl_icmp bl_icmp(__u8 type, __u8 code, __u32 info)
{
	struct bl_icmp icmp = {
		.type = type,
		.code = code,
		.info = bpf_htonl(info),
	};

	return icmp;
}

static __always_inline int bl_answer_icmp(struct __sk_buff *skb, const struct bl_packet *packet,
					  const union bl_addr *source, struct bl_icmp error)
{
	if (packet->part == BL_PACKET_LATER)
		return TC_ACT_SHOT; /* RFC 1122, 3.2.2: the first one is answered */
	return packet->ipv4 ? bl_answer_icmp4(skb, packet, source, &error)
			    : bl_answer_icmp6(skb, packet, source, &error);
}

static volatile __u64 bl_answer_clock;

/* The number of the slice of time in the upper half, and the ICMP errors that it has had. */
static volatile __u64 bl_answer_taken;

/*
 * Whether another ICMP error may be sent (RFC 1812, 4.3.2.8; RFC 4443, 2.4 (f)). In a flood all CPUs
 * but a few read what one of them has counted.
 */
static __always_inline bool bl_answer_may(void)
{
	__u32 slice = bl_clock_units(&bl_answer_clock, 1ULL << BL_ANSWER_SHIFT);
	__u64 taken = bl_answer_taken;

	/* Signed: another CPU may be a jiffy ahead. */
	if ((__s32)(slice - (__u32)(taken >> 32)) > 0)
		__sync_val_compare_and_swap(&bl_answer_taken, taken, (__u64)slice << 32);
	if ((__u32)bl_answer_taken < bl_answer_limit &&
	    (__u32)__sync_fetch_and_add(&bl_answer_taken, 1) < bl_answer_limit)
		return true;
	bl_count(BL_REASON_ICMP_LIMITED);
	return false;
}

/* bl_answer_icmp, unless too many have been sent. */
static __always_inline int bl_answer_bounded(struct __sk_buff *skb, const struct bl_packet *packet,
					     const union bl_addr *source, struct bl_icmp error)
{
	return bl_answer_may() ? bl_answer_icmp(skb, packet, source, error) : TC_ACT_SHOT;
}

/* Nobody serves what the packet asks for. */
__noinline int bl_answer_refused(struct __sk_buff *skb, const struct bl_packet *packet)
{
	if (!packet)
		return TC_ACT_SHOT;
	if (packet->key.proto == IPPROTO_TCP)
		return packet->ipv4 ? bl_answer_reset4(skb, packet) : bl_answer_reset6(skb, packet);
	return bl_answer_bounded(skb, packet, &packet->key.dst,
				 packet->ipv4 ? bl_icmp(BL_ICMP4_UNREACHABLE, BL_ICMP4_PORT, 0)
					      : bl_icmp(BL_ICMP6_UNREACHABLE, BL_ICMP6_PORT, 0));
}

/*
 * The address of this node that the client's packets meet first; that which they are for where
 * the device has none.
 */
static __always_inline union bl_addr bl_answer_source(struct __sk_buff *skb,
						      const struct bl_packet *packet)
{
	union bl_addr source = packet->key.dst;
	const struct bl_device_entry *device;
	__u32 ifindex = skb->ifindex;
	const __u32 *id;
	__u32 index;

	id = bpf_map_lookup_elem(&bl_device_id, &ifindex);
	if (!id)
		return source;
	index = *id;
	device = bpf_map_lookup_elem(&bl_device, &index);
	if (!device)
		return source;
	return bl_device_has_addr(device, packet->ipv4) ? bl_device_addr(device, packet->ipv4)
							: source;
}

/* The packet has no hop left, to be forwarded by this node. */
__noinline int bl_answer_time_exceeded(struct __sk_buff *skb, const struct bl_packet *packet)
{
	union bl_addr source;

	if (!packet)
		return TC_ACT_SHOT;
	source = bl_answer_source(skb, packet);
	return bl_answer_bounded(skb, packet, &source,
				 packet->ipv4
					 ? bl_icmp(BL_ICMP4_TIME_EXCEEDED, BL_ICMP_HOP_LIMIT, 0)
					 : bl_icmp(BL_ICMP6_TIME_EXCEEDED, BL_ICMP_HOP_LIMIT, 0));
}

/* The packet does not fit through the device that it would leave by. */
__noinline int bl_answer_too_big(struct __sk_buff *skb, const struct bl_packet *packet, __u32 mtu)
{
	union bl_addr source;

	if (!packet)
		return TC_ACT_SHOT;
	source = bl_answer_source(skb, packet);
	return bl_answer_icmp(skb, packet, &source,
			      packet->ipv4 ? bl_icmp(BL_ICMP4_UNREACHABLE, BL_ICMP4_TOO_BIG, mtu)
					   : bl_icmp(BL_ICMP6_TOO_BIG, 0, mtu));
}
