/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Direct server return: a client's packet goes in a tunnel to its backend's node, which
 * takes it out and serves it as if it had come there, and answers the client itself.
 */
#pragma once

#include <beeline/pipeline.h>
#include <beeline/node.h>

/* RFC 8926. */
struct bl_geneve {
	__u8 length; /* of options, in units of 4 bytes; above it the version, 0 */
	__u8 flags; /* BL_TUNNEL_CONTROL, BL_TUNNEL_CRITICAL */
	__be16 protocol; /* as in an Ethernet header */
	__u8 network[3];
	__u8 reserved;
};

/* What lies between the outer IP header and the client's packet. */
struct bl_tunnel_shim {
	struct udphdr udp;
	struct bl_geneve geneve;
	struct bl_tunnel_option option;
};
_Static_assert(sizeof(struct bl_tunnel_shim) == BL_TUNNEL_SHIM, "bl_tunnel_shim");

struct bl_tunnel4 {
	struct iphdr ip;
	struct bl_tunnel_shim shim;
};

struct bl_tunnel6 {
	struct ipv6hdr ip;
	struct bl_tunnel_shim shim;
};

/* Where the tunnel takes a packet. */
struct bl_tunnel_end {
	union bl_addr source BL_ALIGNED; /* outer */
	union bl_addr node;
	bool ipv4; /* outer */
};

/* Find the ends of the tunnel for a packet of this @path. False when one is gone. */
static __always_inline bool bl_tunnel_ends(const struct bl_path *path,
					   const struct bl_device_entry *device,
					   struct bl_tunnel_end *end)
{
	const struct bl_node_entry *node = bl_node_lookup(path->to.src_port);

	if (!node)
		return false;
	end->node = node->addr;
	end->ipv4 = bl_addr_is_ipv4(&end->node);
	return (end->node.word[0] | end->node.word[1] | end->node.word[2] | end->node.word[3]) &&
	       bl_tunnel_source(device, end->ipv4, &end->source);
}

static __always_inline __u32 bl_tunnel_overhead(bool ipv4)
{
	return ipv4 ? BL_TUNNEL_IPV4 : BL_TUNNEL_IPV6;
}

/*
 * The outer source port: it spreads flows over the paths between nodes. All fragments of
 * a datagram have the same.
 */
static __always_inline __be16 bl_tunnel_port_of(const struct bl_packet *packet)
{
	const __be32 *src = packet->key.src.word, *dst = packet->key.dst.word;
	__u32 hash = src[1] ^ src[2] ^ src[3] ^ (dst[3] << 7 | dst[3] >> 25);

	if (packet->part == BL_PACKET_WHOLE)
		hash ^= *(const __u32 *)&packet->key.src_port * 0x85ebca6bU;
	hash = (hash ^ hash >> 15) * 0x9e3779b9U;
	return bpf_htons(0xc000 | hash >> 18);
}

/* Fill the headers between the outer IP header and a packet that is @len bytes long. */
static __always_inline void bl_tunnel_fill(const struct bl_packet *packet,
					   const struct bl_path *path, __u32 len,
					   struct bl_tunnel_shim *shim)
{
	__u64 sent = bl_value(bl_secret)->sent;

	shim->udp.source = bl_tunnel_port_of(packet);
	shim->udp.dest = bpf_htons(bl_tunnel_port);
	shim->udp.len = bpf_htons(sizeof(*shim) + len);
	shim->udp.check = 0; /* RFC 6935: what is inside has its own */
	shim->geneve.length = sizeof(shim->option) / 4;
	shim->geneve.flags = BL_TUNNEL_CRITICAL;
	shim->geneve.protocol = packet->ipv4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	__builtin_memset(shim->geneve.network, 0, sizeof(shim->geneve.network));
	shim->geneve.reserved = 0;
	shim->option.class = bpf_htons(BL_TUNNEL_CLASS);
	shim->option.type = BL_TUNNEL_BACKEND;
	shim->option.length = sizeof(shim->option) / 4 - 1;
	shim->option.backend = path->to.dst;
	shim->option.port = path->to.dst_port;
	shim->option.pad = 0;
	__builtin_memcpy(shim->option.secret, &sent, sizeof(sent));
}

/*
 * Fill the outer IP header of a packet that is @len bytes long, without the header. One
 * that is longer than can be said is of many packets: each will get its own length.
 */
static __always_inline void bl_tunnel_fill4(const struct bl_tunnel_end *end, __u8 tos, __u32 len,
					    struct iphdr *ip)
{
	const __u16 *words = (const __u16 *)ip;
	__u32 sum = 0;

	len += sizeof(*ip);
	ip->version = 4;
	ip->ihl = 5;
	ip->tos = tos;
	ip->tot_len = len > 0xffff ? 0 : bpf_htons(len);
	ip->id = 0;
	ip->frag_off = bpf_htons(BL_IP_DONT_FRAGMENT);
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->check = 0;
	ip->saddr = end->source.word[3];
	ip->daddr = end->node.word[3];
	for (unsigned int i = 0; i < sizeof(*ip) / sizeof(*words); i++)
		sum += words[i];
	ip->check = bl_csum_fold(sum);
}

static __always_inline void bl_tunnel_fill6(const struct bl_tunnel_end *end, __u8 tos, __u32 len,
					    struct ipv6hdr *ip)
{
	*(__be32 *)ip = bpf_htonl(6U << 28 | tos << 20);
	ip->payload_len = len > 0xffff ? 0 : bpf_htons(len);
	ip->nexthdr = IPPROTO_UDP;
	ip->hop_limit = 64;
	__builtin_memcpy(&ip->saddr, &end->source, sizeof(ip->saddr));
	__builtin_memcpy(&ip->daddr, &end->node, sizeof(ip->daddr));
}

/*
 * Whether a packet is to the tunnel's port, wherever that is. Of a fragmented datagram the first
 * fragment is: nothing of it gets to a socket without that one.
 */
static __always_inline bool bl_tunnel_port_is(const struct bl_packet *packet)
{
	return bl_tunnel_port && packet->key.dst_port == bpf_htons(bl_tunnel_port) &&
	       packet->key.proto == IPPROTO_UDP && packet->part != BL_PACKET_LATER;
}

/*
 * Whether a packet that has come in is of the tunnel to this node. bl_node_is_other checks
 * its sender.
 */
static __always_inline bool bl_tunnel_here(const struct bl_packet *packet)
{
	return bl_tunnel_port_is(packet) && bl_node_is_self(&packet->key.dst);
}

/* Whether the headers are as bl_tunnel_fill makes them. */
static __always_inline bool bl_tunnel_wellformed(const struct bl_tunnel_shim *shim)
{
	const struct bl_tunnel_option *option = &shim->option;

	return shim->geneve.length == sizeof(*option) / 4 &&
	       shim->geneve.flags == BL_TUNNEL_CRITICAL &&
	       !(shim->geneve.network[0] | shim->geneve.network[1] | shim->geneve.network[2]) &&
	       (shim->geneve.protocol == bpf_htons(ETH_P_IP) ||
		shim->geneve.protocol == bpf_htons(ETH_P_IPV6)) &&
	       option->class == bpf_htons(BL_TUNNEL_CLASS) && option->type == BL_TUNNEL_BACKEND &&
	       option->length == sizeof(*option) / 4 - 1;
}

/* Whether the packet has an accepted mark of the cluster's secret. In constant time. */
static __always_inline bool bl_tunnel_authentic(const struct bl_tunnel_shim *shim)
{
	const struct bl_secret_entry *secret = bl_value(bl_secret);
	__u64 got;

	__builtin_memcpy(&got, shim->option.secret, sizeof(got));
	return (got == secret->accepted[0]) | (got == secret->accepted[1]);
}

/* Whether a packet from the tunnel is one of the tunnel again. */
static __always_inline bool bl_tunnel_nested(const struct bl_packet *inner)
{
	return inner->key.proto == IPPROTO_UDP && inner->part != BL_PACKET_LATER &&
	       inner->key.dst_port == bpf_htons(bl_tunnel_port);
}

/*
 * Whether a packet from the tunnel goes on with the flow that is known of it, although the
 * sender may have chosen another backend. One that leaves this node again would not end.
 */
static __always_inline bool bl_tunnel_keeps(const struct bl_packet *inner,
					    const struct bl_flow_entry *flow,
					    const struct bl_tunnel_option *option, __u32 now)
{
	const struct bl_flow_forward *forward = &flow->forward;
	bool begins = (inner->tcp_flags & (BL_TCP_SYN | BL_TCP_ACK)) == BL_TCP_SYN;

	if (forward->bits & BL_FLOW_IS_REPLY || forward->device)
		return false;
	if (begins && bl_flow_port_reused(inner, forward, now))
		return false;
	if (forward->backend_port == option->port &&
	    bl_addr_equal(&forward->backend, &option->backend))
		return true;
	return inner->key.proto != IPPROTO_UDP &&
	       !(begins && bl_flow_state(forward->bits) == BL_FLOW_NEW);
}

/* Remove the known flow of a packet, which begins another one in its place. */
static __always_inline void bl_tunnel_forget(const struct bl_packet *inner,
					     const struct bl_flow_forward *forward)
{
	union bl_addr source BL_ALIGNED = inner->key.src;

	if (!(forward->bits & BL_FLOW_SNAT) || bl_flow_snat_source(forward, inner->ipv4, &source))
		bl_flow_remove(&inner->key, forward, &source);
}

/*
 * The state of a packet from the tunnel. It takes more than the stack has left; nothing else
 * runs on the CPU meanwhile.
 */
struct bl_tunnel_work {
	struct bl_packet inner;
	struct bl_tunnel_shim shim;
};

/* Each load of the programs has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bl_tunnel_work);
} bl_tunnel_work SEC(".maps");

static __always_inline struct bl_tunnel_work *bl_tunnel_begin(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bl_tunnel_work, &zero);
}

/*
 * Store the entries of the flow that the packet from the tunnel begins. The backend sees
 * the client as it would if the packet had come here at first.
 */
static __always_inline bool bl_tunnel_store(struct BL_CONTEXT *context, struct bl_tunnel_work *work,
					    __u32 now)
{
	const struct bl_flow_key *key = &work->inner.key;
	struct bl_flow_work *flow = bl_flow_work_lookup();
	struct bl_flow_forward *forward;

	if (!flow)
		return false;
	forward = &flow->forward.forward;
	__builtin_memset(forward, 0, sizeof(*forward));
	forward->backend = work->shim.option.backend;
	forward->backend_port = work->shim.option.port;
	forward->backend_id = ~0U;
	forward->source.port = key->src_port;
	forward->used = now;
	if (key->proto == IPPROTO_TCP)
		forward->progress.tcp.client_seq = work->inner.seq + 1;
	else
		forward->progress.tunnel_second = now;
	forward->bits = BL_FLOW_NEW | BL_FLOW_TUNNEL;
	bl_plan_share(forward);
	bl_plan_make_reply(&work->inner, forward, bl_device_of(work->inner.ifindex), now,
			   &flow->reply.reply);
	bl_flow_reply_key(key, forward, &key->src, &flow->key);
	if (!bl_source_port_claim(context, key, false)) {
		bl_source_port_exhausted(&flow->key, forward->backend_id, now);
		bl_half_open_give(forward->bits);
		return false;
	}
	forward->source.port = flow->key.dst_port;
	bl_peers_note(&flow->key.src, &flow->key.dst, now);
	if (bl_flow_store(key, forward))
		return true;
	bl_flow_delete(&flow->key, forward->bits);
	bl_half_open_give(forward->bits);
	bl_packet_drop(&work->inner, BL_REASON_FLOW_NOT_STORED);
	return false;
}

/*
 * The Service that the packet from the tunnel is for. The ingress node knows at which
 * addresses its NodePorts answer.
 */
static __always_inline struct bl_frontend_entry bl_tunnel_frontend(const struct bl_packet *inner)
{
	struct bl_dst dst = bl_packet_dst(inner);
	struct bl_frontend_entry frontend = bl_frontend_get(dst.high, dst.low, dst.tail);

	if (frontend.kind == BL_FRONTEND_NONE)
		return bl_node_port_get(&dst);
	if (frontend.kind == BL_FRONTEND_NODE_PORT)
		frontend.kind = BL_FRONTEND_NONE; /* the any-address */
	return frontend;
}

/*
 * Whether the backend that another node has chosen for a new flow is an endpoint of the flow's
 * Service on this node. BL_REASON_COUNT when it is, else why the packet is dropped.
 */
static __noinline enum bl_reason bl_tunnel_check(const struct bl_packet *inner,
						 const struct bl_tunnel_option *option)
{
	struct bl_endpoint_key key = {
		.prefix_len = BL_ENDPOINT_BITS,
		.addr = option->backend,
		.port = option->port,
	};
	struct bl_frontend_entry frontend;

	if (bl_addr_is_scoped(&inner->key.src))
		return BL_REASON_TUNNEL_MALFORMED;
	frontend = bl_tunnel_frontend(inner);
	if (frontend.kind == BL_FRONTEND_NONE)
		return BL_REASON_TUNNEL_NO_SERVICE;
	key.service = frontend.service;
	return bpf_map_lookup_elem(&bl_endpoint, &key) ? BL_REASON_COUNT
						       : BL_REASON_TUNNEL_NO_BACKEND;
}

/*
 * Make sure that the packet from the tunnel is of a known flow, or begins one to an endpoint of
 * its Service on this node. The ingress node has checked that the endpoint is in a set of the
 * Service. False, counted, when the packet is to be dropped.
 */
static __always_inline bool bl_tunnel_admit(struct BL_CONTEXT *context, struct bl_tunnel_work *work)
{
	struct bl_flow_entry *flow = bl_flow_find(&work->inner.key);
	const union bl_addr *backend = &work->shim.option.backend;
	__u32 now = bl_flow_now(), ifindex;
	enum bl_reason reason;

	if (flow && bl_tunnel_keeps(&work->inner, flow, &work->shim.option, now)) {
		if (work->inner.key.proto != IPPROTO_TCP &&
		    bl_flow_comes_by_tunnel(&flow->forward) &&
		    flow->forward.progress.tunnel_second != now)
			flow->forward.progress.tunnel_second = now;
		return true;
	}
	reason = bl_tunnel_check(&work->inner, &work->shim.option);
	if (reason != BL_REASON_COUNT) {
		bl_packet_drop(&work->inner, reason);
		return false;
	}
	ifindex = bl_route(context, work->inner.ifindex, &work->inner.key.src, backend,
			   work->inner.ipv4);
	if (bl_device_to_node(ifindex, true) ||
	    (backend->word[2] == bpf_htonl(0xffff)) != work->inner.ipv4) {
		bl_packet_drop(&work->inner, BL_REASON_TUNNEL_NO_BACKEND);
		return false;
	}
	if (flow && !(bl_flow_bits(flow) & BL_FLOW_IS_REPLY))
		bl_tunnel_forget(&work->inner, &flow->forward);
	return bl_tunnel_store(context, work, now);
}
