/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets at tc: parsing of all headers, and rewriting with right checksums under every kind of
 * checksum offload.
 */
#pragma once

#include <beeline/route.h>
#include <beeline/opt/sctp.h>

/* To the next program of the hook, then the stack: the packet is not ours. */
#define BL_TC_PASS TC_ACT_UNSPEC

enum bl_packet_limits {
	BL_PACKET_MAX_EXTENSIONS = 8, /* IPv6 extension headers */
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
	__be32 numbers[2];

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
	packet->data = packet->l4 + header < end;
	if (packet->key.proto == IPPROTO_TCP) {
		if (bpf_skb_load_bytes(skb, packet->l4 + offsetof(struct tcphdr, seq), &numbers,
				       sizeof(numbers)))
			return false;
		packet->seq = bpf_ntohl(numbers[0]);
		packet->ack = bpf_ntohl(numbers[1]);
	}
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
	bl_packet_fragment(packet, bpf_ntohs(ip.frag_off) & 0x1fff,
			   ip.frag_off & bpf_htons(BL_IP_MORE_FRAGMENTS), ip.id);
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

/* Whether a fragment is not the first one, by its header; one that is all 0 is no fragment's. */
static __always_inline bool bl_extension_later(const struct bl_extension *fragment)
{
	return fragment->offset & bpf_htons(0xfff8);
}

/*
 * Walk the extension headers of an IPv6 packet, the first of which is @next at @at, up to what
 * has ports or is a later fragment's; that is then in both. A fragment's header is copied to
 * @fragment. False when the packet is cut short.
 */
static __always_inline bool bl_packet_extensions(struct __sk_buff *skb, __u32 *at, __u8 *next,
						 struct bl_extension *fragment)
{
	struct bl_extension extension;

	for (int i = 0; i < BL_PACKET_MAX_EXTENSIONS; i++) {
		switch (*next) {
		case IPPROTO_FRAGMENT:
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
			if (bpf_skb_load_bytes(skb, *at, &extension, sizeof(extension)))
				return false;
			if (*next == IPPROTO_FRAGMENT) {
				extension.length = 0;
				*fragment = extension;
			}
			*next = extension.next;
			*at += (extension.length + 1) * 8;
			if (!bl_extension_later(fragment))
				continue;
		}
		break;
	}
	return true;
}

static __always_inline bool bl_packet_ipv6(struct __sk_buff *skb, struct bl_packet *packet)
{
	struct bl_extension fragment = {};
	struct ipv6hdr ip;
	__u32 at = packet->l3 + sizeof(ip);

	if (bpf_skb_load_bytes(skb, packet->l3, &ip, sizeof(ip)) || ip.version != 6)
		return false;
	__builtin_memcpy(&packet->key.src, &ip.saddr, sizeof(packet->key.src));
	__builtin_memcpy(&packet->key.dst, &ip.daddr, sizeof(packet->key.dst));
	if (bl_packet_mapped(&packet->key.src, &packet->key.dst))
		return false;
	packet->ttl = ip.hop_limit;
	packet->ipv4 = false;
	packet->key.proto = ip.nexthdr;
	if (!bl_packet_extensions(skb, &at, &packet->key.proto, &fragment))
		return false;
	bl_packet_fragment(packet, bpf_ntohs(fragment.offset) & 0xfff8,
			   fragment.offset & bpf_htons(1), fragment.id);
	packet->l4 = at;
	return bl_packet_ports(skb, packet,
			       sizeof(ip) + bl_packet_len(skb, packet->l3 + sizeof(ip),
							  bpf_ntohs(ip.payload_len)));
}

/*
 * Read the headers of a packet in @skb, whose network header, of @protocol, is at @l3.
 * False when the packet is none that a Service could carry: not IP, another protocol, cut
 * short, with a bad length or a v4-mapped address. Of a later fragment, whatever it carries, the ports stay
 * as they are. Changes nothing.
 */
__noinline bool bl_packet_parse_as(struct __sk_buff *skb, __u32 l3, __u32 protocol,
				   struct bl_packet *packet)
{
	if (!packet)
		return false;
	packet->l3 = l3;
	bl_flow_key_clear(&packet->key);
	switch (protocol) {
	case bpf_htons(ETH_P_IP):
		return bl_packet_ipv4(skb, packet);
	case bpf_htons(ETH_P_IPV6):
		return bl_packet_ipv6(skb, packet);
	}
	return false;
}

/* bl_packet_parse_as for the packet that @skb is. */
static __always_inline bool bl_packet_parse(struct __sk_buff *skb, __u32 l3,
					    struct bl_packet *packet)
{
	return bl_packet_parse_as(skb, l3, skb->protocol, packet);
}

/*
 * The interface index of the device @id in bl_device, by which a packet leaves that is
 * given the addresses of @to. 0 when there is none.
 */
static __always_inline __u32 bl_tc_ifindex(struct __sk_buff *skb, __u32 id,
					   const struct bl_rewrite *to, bool ipv4)
{
	const struct bl_device_entry *device;

	if (id == BL_DEVICE_ROUTED)
		return bl_route(skb, skb->ifindex, &to->src, &to->dst, ipv4);
	device = bl_device_lookup(id);
	return device ? device->ifindex : 0;
}

/*
 * The number by which a program at egress knows what a program of the same agent has sent:
 * packets have nothing else in skb->cb that is as unlikely, and nobody can guess it. 0: it
 * knows none.
 */
volatile const __u64 bl_sent;

/*
 * Send the packet, whose IP header is at @l3, out by a device to the next hop @via; NULL: the kernel
 * looks for one. Without the tag that it may have come in with, which is one of priority alone.
 * bpf_redirect_neigh drops what has no link header to take off, as from a device without Ethernet.
 */
static __always_inline int bl_skb_send(struct __sk_buff *skb, __u32 l3, __u32 ifindex,
				       struct bpf_redir_neigh *via)
{
	if (skb->vlan_present && bpf_skb_vlan_pop(skb))
		return TC_ACT_SHOT;
	if (!l3 && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return TC_ACT_SHOT;
	if (bl_sent) {
		skb->cb[0] = bl_sent >> 32;
		skb->cb[1] = (__u32)bl_sent;
	}
	return bpf_redirect_neigh(ifindex, via, via ? sizeof(*via) : 0, 0);
}

/* Whether bl_skb_send has sent the packet here. Asked once for each. */
static __always_inline bool bl_skb_was_sent(struct __sk_buff *skb)
{
	if (!bl_sent || skb->cb[0] != bl_sent >> 32 || skb->cb[1] != (__u32)bl_sent)
		return false;
	skb->cb[0] = 0;
	return true;
}

/* bl_packet_plain for the packet of @skb, if all of it is there. */
static __always_inline bool bl_skb_plain(struct __sk_buff *skb, __u32 l3, struct bl_packet *packet)
{
	return bl_packet_plain((void *)(long)skb->data, (void *)(long)skb->data_end, l3,
			       skb->protocol, packet) &&
	       packet->l4 + packet->l4_len <= skb->len;
}

/*
 * Whether the packet's checksum, which is at @at, is left to the sending device
 * (CHECKSUM_PARTIAL): the kernel then leaves the field alone when told of changes. Changes
 * nothing.
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

/*
 * The sum of a whole packet that the device may have computed (CHECKSUM_COMPLETE): with
 * BPF_F_PSEUDO_HDR the kernel takes a change of the addresses for one that the checksum of
 * the IPv4 header makes up for. An IPv6 header has none, so the sum is told of the new
 * addresses, which makes it what it was.
 */
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
				       &hop_limit, sizeof(hop_limit), BPF_F_RECOMPUTE_CSUM))
		return false;
	return !bpf_skb_store_bytes(skb, packet->l3 + offsetof(struct ipv6hdr, saddr), &to->src, 32,
				    BPF_F_RECOMPUTE_CSUM);
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

/* Whether a datagram has no checksum at @at: nothing makes up for what changes in it. */
static __always_inline bool bl_packet_no_checksum(struct __sk_buff *skb, __u32 at)
{
	__u16 sum;

	return !bpf_skb_load_bytes(skb, at, &sum, sizeof(sum)) && !sum;
}

/* Give a TCP or UDP packet new ports. */
static __always_inline bool bl_rewrite_ports(struct __sk_buff *skb, const struct bl_packet *packet,
					     __u32 to_ports, __u32 checksum, __u64 flags)
{
	__u32 from_ports = *(const __u32 *)&packet->key.src_port;

	if (packet->key.proto == IPPROTO_UDP && bl_packet_no_checksum(skb, checksum))
		return !bpf_skb_store_bytes(skb, packet->l4, &to_ports, sizeof(to_ports),
					    BPF_F_RECOMPUTE_CSUM);
	return !bpf_l4_csum_replace(skb, checksum, from_ports, to_ports,
				    flags | sizeof(to_ports)) &&
	       !bpf_skb_store_bytes(skb, packet->l4, &to_ports, sizeof(to_ports), 0);
}

/*
 * Give the packet the addresses and, unless it is a later fragment, the ports of @to, with
 * right checksums under every kind of checksum offload; with @hop also decrement the TTL.
 * False when the packet could not be written: it is then to be dropped, for it may be half
 * changed.
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
	__u32 change, words[2];
	void *end;
	__u64 sum;

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
		if (unlikely(packet->key.proto == IPPROTO_UDP &&
			     !((struct udphdr *)&four->tcp)->check))
			bpf_csum_update(skb, bl_csum_change(&from_ports, &to_ports, 1));
		return true;
	}
	six = (void *)(long)skb->data + (packet->l3 ? ETH_HLEN : 0);
	if ((void *)(six + 1) > end)
		return false;
	words[0] = ((const __u32 *)&six->ip)[1];
	bl_plain_ipv6(&six->ip, to, hop);
	words[1] = ((const __u32 *)&six->ip)[1];
	*(__u32 *)&six->tcp = to_ports;
	/* See bl_rewrite_ipv6. */
	sum = (__u64)change + bl_csum_change(&words[0], &words[1], 1);
	if (unlikely(packet->key.proto == IPPROTO_UDP && !((struct udphdr *)&six->tcp)->check))
		sum += bl_csum_change(&from_ports, &to_ports, 1);
	sum = (sum & 0xffffffff) + (sum >> 32);
	bpf_csum_update(skb, (__u32)sum + (__u32)(sum >> 32));
	return true;
}
