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
#include <beeline/sctp.h>

/*
 * Functions here and in the files that stand on this one are not static where the
 * verifier is to look at them once, whatever calls them with what: the programs
 * would else take seconds to load. It then takes their pointers for ones that may
 * be NULL.
 */

enum bl_packet_limits {
	BL_PACKET_MAX_EXTENSIONS = 8, /* IPv6 extension headers */
};

/* Flags in byte 13 of the TCP header. */
enum bl_tcp_flags {
	BL_TCP_FIN = 0x01,
	BL_TCP_SYN = 0x02,
	BL_TCP_RST = 0x04,
	BL_TCP_ACK = 0x10,
};

/* Which part of a datagram a packet is. */
enum bl_packet_part {
	BL_PACKET_WHOLE,
	BL_PACKET_FIRST, /* fragment */
	BL_PACKET_LATER, /* fragment: without ports */
};

/* Offsets are from the start of the packet data. */
struct bl_packet {
	struct bl_flow_key key BL_ALIGNED; /* addresses, ports, protocol as they stand */
	__u32 l3;
	__u32 l4;
	__be32 fragment_id; /* 0 when whole */
	__u16 l4_len; /* by the IP header; cut off where the kernel has put many packets together */
	/* SCTP: of the segment that means the same to a connection. UDP: 0. */
	__u8 tcp_flags;
	__u8 ttl; /* or hop limit */
	bool ipv4;
	bool plain; /* read by bl_packet_plain */
	__u8 part; /* enum bl_packet_part */
	/* The packet is about to leave: what is answered comes in by the device. */
	bool leaves;
};

/* The flags that mean to a connection what @chunk means to an association. */
static __always_inline __u8 bl_packet_chunk_flags(__u8 chunk)
{
	switch (chunk) {
	case BL_SCTP_INIT:
		return BL_TCP_SYN;
	case BL_SCTP_INIT_ACK:
		return BL_TCP_SYN | BL_TCP_ACK;
	case BL_SCTP_SHUTDOWN:
	case BL_SCTP_SHUTDOWN_ACK:
		return BL_TCP_FIN | BL_TCP_ACK;
	case BL_SCTP_ABORT:
	case BL_SCTP_SHUTDOWN_COMPLETE:
		return BL_TCP_RST;
	}
	return BL_TCP_ACK;
}

/* Note a fragment: @offset is where in the datagram it is, @more whether it is not the last. */
static __always_inline void bl_packet_fragment(struct bl_packet *packet, __u16 offset, bool more,
					       __be32 id)
{
	packet->part = offset ? BL_PACKET_LATER : more ? BL_PACKET_FIRST : BL_PACKET_WHOLE;
	packet->fragment_id = packet->part == BL_PACKET_WHOLE ? 0 : id;
}

/*
 * Read the ports of a packet that is @len bytes long from its network header on.
 * False when it is cut short or a length in it is wrong, and for a fragment of SCTP,
 * whose checksum can be corrected only when all of the packet is there.
 */
static __always_inline bool bl_packet_ports(struct __sk_buff *skb, struct bl_packet *packet,
					    __u32 len)
{
	__u32 end = packet->l3 + len;
	__u32 header = sizeof(struct udphdr);
	__u8 size_flags[2] = {};

	if (packet->part == BL_PACKET_LATER)
		return packet->l4 < end && end <= skb->len;
	switch (packet->key.proto) {
	case IPPROTO_TCP:
		if (bpf_skb_load_bytes(skb, packet->l4 + 12, size_flags, sizeof(size_flags)))
			return false;
		header = size_flags[0] >> 4 << 2;
		if (header < sizeof(struct tcphdr))
			return false;
		break;
	case IPPROTO_UDP:
		break;
	case IPPROTO_SCTP:
		if (packet->part != BL_PACKET_WHOLE)
			return false;
		header = sizeof(struct bl_sctp);
		/* The type of the first chunk; 0, which is data, where there is none. */
		bpf_skb_load_bytes(skb, packet->l4 + header, &size_flags[1], 1);
		size_flags[1] = bl_packet_chunk_flags(size_flags[1]);
		break;
	default:
		return false;
	}
	if (packet->l4 + header > end || end > skb->len)
		return false;
	packet->tcp_flags = size_flags[1];
	packet->l4_len = end - packet->l4;
	return !bpf_skb_load_bytes(skb, packet->l4, &packet->key.src_port, 4);
}

/*
 * The length of an IP packet: @len as its header has it, or 0 there for a packet
 * that the kernel has put together of many and that is longer than can be said.
 */
static __always_inline __u32 bl_packet_len(struct __sk_buff *skb, __u32 l3, __u32 len)
{
	return len || !skb->gso_size ? len : skb->len - l3;
}

static __always_inline bool bl_packet_ipv4(struct __sk_buff *skb, struct bl_packet *packet)
{
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)))
		return false;
	if (ip.version != 4 || ip.ihl < 5)
		return false;
	bl_packet_fragment(packet, bpf_ntohs(ip.frag_off) & 0x1fff, ip.frag_off & bpf_htons(0x2000),
			   ip.id);
	bl_addr_set_ipv4(&packet->key.src, ip.saddr);
	bl_addr_set_ipv4(&packet->key.dst, ip.daddr);
	packet->key.proto = ip.protocol;
	packet->ttl = ip.ttl;
	packet->ipv4 = true;
	packet->l4 = packet->l3 + ip.ihl * 4;
	return bl_packet_ports(skb, packet, bl_packet_len(skb, packet->l3, bpf_ntohs(ip.tot_len)));
}

/* The start of an extension header. */
struct bl_extension {
	__u8 next;
	__u8 length; /* in units of 8 bytes, the first not counted; not of a fragment's */
	__be16 offset; /* of a fragment: the lowest bit says whether there are more */
	__be32 id; /* of a fragment */
};

static __always_inline bool bl_packet_ipv6(struct __sk_buff *skb, struct bl_packet *packet)
{
	struct bl_extension extension;
	struct ipv6hdr ip;
	__u32 at = packet->l3 + sizeof(ip);
	__u8 next;

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)) || ip.version != 6)
		return false;
	__builtin_memcpy(&packet->key.src, &ip.saddr, sizeof(packet->key.src));
	__builtin_memcpy(&packet->key.dst, &ip.daddr, sizeof(packet->key.dst));
	packet->ttl = ip.hop_limit;
	packet->ipv4 = false;
	next = ip.nexthdr;
	for (int i = 0; i < BL_PACKET_MAX_EXTENSIONS; i++) {
		switch (next) {
		case IPPROTO_FRAGMENT:
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			if (bpf_skb_load_bytes(skb, at, &extension, sizeof(extension)))
				return false;
			if (next == IPPROTO_FRAGMENT) {
				extension.length = 0;
				bl_packet_fragment(packet, bpf_ntohs(extension.offset) & 0xfff8,
						   extension.offset & bpf_htons(1), extension.id);
			}
			next = extension.next;
			at += (extension.length + 1) * 8;
			if (packet->part != BL_PACKET_LATER)
				continue;
		}
		break;
	}
	packet->key.proto = next;
	packet->l4 = at;
	return bl_packet_ports(skb, packet,
			       sizeof(ip) + bl_packet_len(skb, packet->l3 + sizeof(ip),
							  bpf_ntohs(ip.payload_len)));
}

/*
 * Read the headers of @skb, whose network header is at @l3. False when the packet
 * is none that a Service could carry: not IP, another protocol, cut short, or with
 * a bad length. Of a later fragment, whatever it carries, the ports stay as they
 * are. Changes nothing.
 */
__noinline bool bl_packet_parse(struct __sk_buff *skb, __u32 l3, struct bl_packet *packet)
{
	if (!packet)
		return false;
	packet->l3 = l3;
	__builtin_memset(packet->key.pad, 0, sizeof(packet->key.pad));
	switch (skb->protocol) {
	case bpf_htons(ETH_P_IP):
		return bl_packet_ipv4(skb, packet);
	case bpf_htons(ETH_P_IPV6):
		return bl_packet_ipv6(skb, packet);
	}
	return false;
}

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
 * As bl_packet_parse, in a third of the time, for packets without IP options or
 * extension headers whose first bytes lie in one piece; most are. False for all
 * others: bl_packet_parse then tells.
 */
static __always_inline bool bl_packet_plain(struct __sk_buff *skb, __u32 l3,
					    struct bl_packet *packet)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	const struct bl_plain4 *four = data + l3;
	const struct bl_plain6 *six = data + l3;
	const struct tcphdr *tcp;
	__u32 length;

	packet->l3 = l3;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
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
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if ((void *)(six + 1) > end || *(const __u8 *)six >> 4 != 6)
			return false;
		__builtin_memcpy(&packet->key.src, &six->ip.saddr, sizeof(packet->key.src));
		__builtin_memcpy(&packet->key.dst, &six->ip.daddr, sizeof(packet->key.dst));
		packet->key.proto = six->ip.nexthdr;
		packet->ttl = six->ip.hop_limit;
		packet->ipv4 = false;
		packet->l4 = l3 + sizeof(six->ip);
		length = bpf_ntohs(six->ip.payload_len);
		tcp = &six->tcp;
	} else {
		return false;
	}
	if (length < sizeof(*tcp) || length > 0xffff || packet->l4 + length > skb->len)
		return false;
	packet->l4_len = length;
	*(__u32 *)&packet->key.src_port = *(const __u32 *)tcp;
	if (packet->key.proto == IPPROTO_UDP) {
		packet->tcp_flags = 0;
		return true;
	}
	packet->tcp_flags = ((const __u8 *)tcp)[13];
	return packet->key.proto == IPPROTO_TCP &&
	       ((const __u8 *)tcp)[12] >> 4 << 2 >= (int)sizeof(*tcp) &&
	       (__u32)(((const __u8 *)tcp)[12] >> 4 << 2) <= length;
}

/* New addresses and ports of a packet. */
struct bl_rewrite {
	union bl_addr src;
	union bl_addr dst;
	__be16 src_port;
	__be16 dst_port;
};

/*
 * Whether the packet's checksum, which is at @at, is left to whoever sends it: the
 * kernel then leaves the field alone when told of changes. Changes nothing.
 */
static __always_inline bool bl_packet_unsummed(struct __sk_buff *skb, __u32 at)
{
	__be16 before, after;

	if (bpf_skb_load_bytes(skb, at, &before, sizeof(before)))
		return false;
	if (bpf_l4_csum_replace(skb, at, 0, 1, 0))
		return false;
	if (bpf_skb_load_bytes(skb, at, &after, sizeof(after)))
		return false;
	return !bpf_skb_store_bytes(skb, at, &before, sizeof(before), 0) && before == after;
}

/*
 * Where the checksum that covers the addresses is in the header of the protocol, and
 * how it is replaced. 0 when there is none.
 */
static __always_inline __u32 bl_packet_checksum(const struct bl_packet *packet, __u64 *flags)
{
	*flags = 0;
	if (packet->key.proto == IPPROTO_SCTP)
		return 0;
	if (packet->key.proto == IPPROTO_TCP)
		return packet->l4 + offsetof(struct tcphdr, check);
	/* A UDP checksum of zero is none and stays so. */
	*flags = BPF_F_MARK_MANGLED_0;
	return packet->l4 + offsetof(struct udphdr, check);
}

static __always_inline bool bl_rewrite_ipv4(struct __sk_buff *skb, const struct bl_packet *packet,
					    const struct bl_rewrite *to, bool hop, __u32 checksum,
					    __u64 flags)
{
	__be32 from_addrs[2] = {packet->key.src.word[3], packet->key.dst.word[3]};
	__be32 to_addrs[2] = {to->src.word[3], to->dst.word[3]};
	__u8 ttl = packet->ttl - 1;
	__s64 diff;

	diff = bpf_csum_diff(from_addrs, sizeof(from_addrs), to_addrs, sizeof(to_addrs), 0);
	if (checksum && bpf_l4_csum_replace(skb, checksum, 0, diff, flags | BPF_F_PSEUDO_HDR))
		return false;
	if (bpf_l3_csum_replace(skb, packet->l3 + offsetof(struct iphdr, check), 0, diff, 0))
		return false;
	if (hop) {
		if (bpf_l3_csum_replace(skb, packet->l3 + offsetof(struct iphdr, check),
					bpf_htons(packet->ttl << 8), bpf_htons(ttl << 8), 2))
			return false;
		if (bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct iphdr, ttl), &ttl,
					sizeof(ttl), 0))
			return false;
	}
	return !bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct iphdr, saddr), to_addrs,
				    sizeof(to_addrs), 0);
}

static __always_inline bool bl_rewrite_ipv6(struct __sk_buff *skb, const struct bl_packet *packet,
					    const struct bl_rewrite *to, bool hop, __u32 checksum,
					    __u64 flags)
{
	__u8 hop_limit = packet->ttl - 1;
	__s64 diff;

	diff = bpf_csum_diff((__be32 *)&packet->key.src, 32, (__be32 *)&to->src, 32, 0);
	if (checksum && bpf_l4_csum_replace(skb, checksum, 0, diff, flags | BPF_F_PSEUDO_HDR))
		return false;
	if (hop && bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, hop_limit),
				       &hop_limit, sizeof(hop_limit), 0))
		return false;
	return !bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, saddr), &to->src, 32,
				    checksum ? 0 : BPF_F_RECOMPUTE_CSUM);
}

/*
 * Give an SCTP packet new ports. A checksum that is left to the device stays as it
 * is.
 */
static __noinline bool bl_rewrite_sctp(struct __sk_buff *skb, const struct bl_packet *packet,
				       __u32 to_ports)
{
	__u32 at = packet->l4 + offsetof(struct bl_sctp, checksum);
	__u32 change = *(const __u32 *)&packet->key.src_port ^ to_ports;
	__u32 checksum;

	if (!change)
		return true;
	if (!bl_packet_unsummed(skb, at)) {
		if (bpf_skb_load_bytes(skb, at, &checksum, sizeof(checksum)))
			return false;
		checksum ^= bl_sctp_checksum_change(change, packet->l4_len);
		if (bpf_skb_store_bytes(skb, at, &checksum, sizeof(checksum), BPF_F_RECOMPUTE_CSUM))
			return false;
	}
	return !bpf_skb_store_bytes(skb, packet->l4, &to_ports, sizeof(to_ports),
				    BPF_F_RECOMPUTE_CSUM);
}

/* Give a TCP or UDP packet new ports. */
static __always_inline bool bl_rewrite_ports(struct __sk_buff *skb, const struct bl_packet *packet,
					     __u32 to_ports, __u32 checksum, __u64 flags)
{
	__u32 from_ports = *(const __u32 *)&packet->key.src_port;

	return !bpf_l4_csum_replace(skb, checksum, from_ports, to_ports,
				    flags | sizeof(to_ports)) &&
	       !bpf_skb_store_bytes(skb, packet->l4, &to_ports, sizeof(to_ports), 0);
}

/*
 * Give the packet the addresses and, unless it is a later fragment, the ports of
 * @to, with right checksums whatever
 * the device computes; with @hop also one hop less to live. False when the packet
 * could not be written: it is then to be dropped, for it may be half changed.
 */
__noinline bool bl_packet_rewrite(struct __sk_buff *skb, const struct bl_packet *packet,
				  const struct bl_rewrite *to, bool hop)
{
	__u32 checksum, to_ports;
	__u64 flags;

	if (!packet || !to)
		return false;
	checksum = bl_packet_checksum(packet, &flags);
	to_ports = *(const __u32 *)&to->src_port;
	if (packet->part == BL_PACKET_LATER)
		checksum = 0; /* both it and the ports are in the first one */
	else if (checksum ? !bl_rewrite_ports(skb, packet, to_ports, checksum, flags)
			  : !bl_rewrite_sctp(skb, packet, to_ports))
		return false;
	return packet->ipv4 ? bl_rewrite_ipv4(skb, packet, to, hop, checksum, flags)
			    : bl_rewrite_ipv6(skb, packet, to, hop, checksum, flags);
}

/* The sum of what changes between two runs of words, for bpf_l4_csum_replace. */
static __always_inline __u32 bl_csum_change(const __u32 *from, const __u32 *to, int words)
{
	__u64 sum = 0;

	for (int i = 0; i < words; i++)
		sum += (__u64)(__u32)~from[i] + to[i];
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)sum + (__u32)(sum >> 32);
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

/*
 * As bl_packet_rewrite, in half of the time, for a packet that bl_packet_plain has
 * read: only the checksum that a device may have a part in is left to the kernel.
 */
static __always_inline bool bl_packet_rewrite_plain(struct __sk_buff *skb,
						    const struct bl_packet *packet,
						    const struct bl_rewrite *to, bool hop)
{
	__u32 from_ports = *(const __u32 *)&packet->key.src_port;
	__u32 to_ports = *(const __u32 *)&to->src_port;
	struct bl_plain4 *four;
	struct bl_plain6 *six;
	__u64 flags;
	__u32 checksum = bl_packet_checksum(packet, &flags);
	__u32 change;
	void *end;

	if (packet->ipv4) {
		__u32 from[2] = {packet->key.src.word[3], packet->key.dst.word[3]};
		__u32 now[2] = {to->src.word[3], to->dst.word[3]};

		change = bl_csum_change(from, now, 2);
	} else {
		change =
			bl_csum_change((const __u32 *)&packet->key.src, (const __u32 *)&to->src, 8);
	}
	if (bpf_l4_csum_replace(skb, checksum, 0, change, flags | BPF_F_PSEUDO_HDR))
		return false;
	if (from_ports != to_ports &&
	    bpf_l4_csum_replace(skb, checksum, from_ports, to_ports, flags | sizeof(to_ports)))
		return false;
	end = (void *)(long)skb->data_end;
	if (packet->ipv4) {
		four = (void *)(long)skb->data + (packet->l3 ? ETH_HLEN : 0);
		if ((void *)(four + 1) > end)
			return false;
		bl_plain_ipv4(&four->ip, to, change, hop);
		*(__u32 *)&four->tcp = to_ports;
		return true;
	}
	six = (void *)(long)skb->data + (packet->l3 ? ETH_HLEN : 0);
	if ((void *)(six + 1) > end)
		return false;
	bl_plain_ipv6(&six->ip, to, hop);
	*(__u32 *)&six->tcp = to_ports;
	return true;
}
