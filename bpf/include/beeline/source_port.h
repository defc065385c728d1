/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Source ports: which port the backend sees as the client's.
 *
 * A flow that keeps the client's address keeps its port, too, unless that clashes: the client
 * may have a connection of its own to the backend, from the same port, for to the client these
 * are two different destinations. With SNAT, the client's port is kept unless it is in the
 * node's ephemeral port range, from which the kernel serves the node's own processes, or
 * reserved (bl_source_port); else, and when another flow or the host has it, the flow gets one
 * of bl_snat_port_min to bl_snat_port_max.
 *
 * The reply entry is the claim to a port: two flows with one backend and one source differ by
 * their port, or the second is not stored.
 */
#pragma once

#include <beeline/conntrack.h>
#include <beeline/route.h>

enum bl_source_port_limits {
	BL_SOURCE_PORT_TRIES = 16, /* at ports that no flow has, but perhaps the host */
	BL_SOURCE_PORT_SAMPLES = 256, /* ports that are looked at before all are */
};

/* Source ports of SNAT, host byte order, both included. */
volatile const __u16 bl_snat_port_min = 1024;
volatile const __u16 bl_snat_port_max = 65535;

/* The socket of this host that packets are for. */
enum bl_port_use {
	BL_PORT_UNUSED,
	BL_PORT_BOUND, /* it would take them from anybody: it listens, or is bound to the port */
	BL_PORT_CONNECTED, /* it is connected to their sender */
	/* It is so yet or still, and a SYN may begin a connection: NEW_SYN_RECV, TIME_WAIT. */
	BL_PORT_WAITING,
};

static __always_inline enum bl_port_use bl_port_use(struct BL_CONTEXT *context,
						    struct bpf_sock_tuple *tuple, __u32 size,
						    const struct bl_flow_key *key)
{
	enum bl_port_use use = BL_PORT_BOUND;
	struct bpf_sock *sk;

	if (key->proto == IPPROTO_TCP) {
		sk = bpf_skc_lookup_tcp(context, tuple, size, BPF_F_CURRENT_NETNS, 0);
		if (!sk)
			return BL_PORT_UNUSED;
		if (sk->state == BPF_TCP_NEW_SYN_RECV || sk->state == BPF_TCP_TIME_WAIT)
			use = BL_PORT_WAITING;
		else if (sk->state != BPF_TCP_LISTEN)
			use = BL_PORT_CONNECTED;
	} else {
		sk = bpf_sk_lookup_udp(context, tuple, size, BPF_F_CURRENT_NETNS, 0);
		if (!sk)
			return BL_PORT_UNUSED;
		/* One that is bound alone has port 0 there. */
		if (key->src_port && sk->dst_port == key->src_port)
			use = BL_PORT_CONNECTED;
	}
	bpf_sk_release(sk);
	return use;
}

/*
 * Whether packets like @key, a reply's, are for a socket of this host, or of a connection
 * that netfilter translates. SCTP's are not known. A socket that listens does not count:
 * no backend sends to it from the port that it serves at.
 */
static __always_inline bool bl_port_owned(struct BL_CONTEXT *context, const struct bl_flow_key *key,
					  bool ipv4)
{
	struct bpf_sock_tuple tuple = {};
	enum bl_port_use use;
	__u32 size;

	if (key->proto == IPPROTO_SCTP)
		return false;
	size = bl_sock_tuple(ipv4, &key->src, key->src_port, &key->dst, key->dst_port, &tuple);
	if (bl_tracked(context, &tuple, size, key->proto) != BL_TRACKED_NONE)
		return true;
	use = bl_port_use(context, &tuple, size, key);
	return use >= BL_PORT_CONNECTED || (use == BL_PORT_BOUND && key->proto == IPPROTO_UDP);
}

static __noinline bool bl_port_taken(struct BL_CONTEXT *context, const struct bl_flow_key *key,
				     bool ipv4)
{
	return bl_port_owned(context, key, ipv4);
}

/*
 * Whether a UDP socket of this host is connected to the sender of packets like @key, a reply's.
 * One that is only bound to the port says nothing: those of a flow may be no answers to it.
 */
static __noinline bool bl_port_connected(struct BL_CONTEXT *context, const struct bl_flow_key *key,
					 bool ipv4)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size =
		bl_sock_tuple(ipv4, &key->src, key->src_port, &key->dst, key->dst_port, &tuple);

	return bl_port_use(context, &tuple, size, key) == BL_PORT_CONNECTED;
}

/*
 * Whether packets like @key, which a Service would have, belong to a connection that the host
 * has already: they are answers, as netfilter sees it, or for a connected socket. One that is only
 * bound to the port does not count, for a Service goes before it. What netfilter has seen as a
 * client's packets does not either: the former proxy may have translated them. With @opens the
 * packet is a SYN.
 */
static __noinline bool bl_port_answered(struct BL_CONTEXT *context, const struct bl_flow_key *key,
					bool ipv4, bool opens)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size =
		bl_sock_tuple(ipv4, &key->src, key->src_port, &key->dst, key->dst_port, &tuple);
	enum bl_port_use use;

	if (bl_tracked(context, &tuple, size, key->proto) == BL_TRACKED_ANSWER)
		return true;
	use = bl_port_use(context, &tuple, size, key);
	return use == BL_PORT_CONNECTED || (use == BL_PORT_WAITING && !opens);
}

static __always_inline bool bl_source_port_has(const __u64 *set, __u16 port)
{
	return set[port >> 6] >> (port & 63) & 1;
}

/* Whether @port is in the node's ephemeral port range. */
static __always_inline bool bl_source_port_local(const struct bl_source_port_entry *ports,
						 __u16 port)
{
	return port >= ports->local_min && port <= ports->local_max;
}

/* Whether SNAT avoids @port: always when it is reserved, else until no other is left. */
static __always_inline bool bl_source_port_spared(const struct bl_source_port_entry *ports,
						  __u16 port)
{
	return bl_source_port_has(ports->reserved, port) || bl_source_port_local(ports, port);
}

/*
 * The port with which a flow with SNAT begins; 0 when the client's cannot be kept. Clients' ports
 * within the node's ephemeral range are remapped out of it by its length, all alike, so that
 * they stay distinct.
 */
static __always_inline __u16 bl_source_port_first(const struct bl_source_port_entry *ports,
						  __u16 port)
{
	__u32 length = ports->local_max - ports->local_min + 1;

	if (bl_source_port_local(ports, port)) {
		if (port < length + 1024)
			return 0;
		port -= length;
	}
	return bl_source_port_spared(ports, port) ? 0 : port;
}

/* A SYN that comes again and is not to reach the same backend: see opt/outlier_packet.h. */
struct bl_again {
	__u32 seq; /* its sequence number */
	__u32 but; /* 1 + the id of the backend; 0: there is no such SYN */
	bool refused; /* a backend has refused it */
	__u8 pad[7];
};

/*
 * The entries of a flow that begins. They take more than the stack has left; nothing else
 * runs on the CPU meanwhile.
 */
struct bl_flow_work {
	struct bl_flow_entry forward;
	struct bl_flow_entry reply;
	struct bl_flow_key key; /* of the reply entry */
	struct bl_again again;
};

/* Each load of the programs has its own. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bl_flow_work);
} bl_flow_work SEC(".maps");

static __always_inline struct bl_flow_work *bl_flow_work_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bl_flow_work, &zero);
}

/* A search for a port that no flow to the backend has. */
struct bl_source_port_search {
	__u32 start; /* number of the first port, from bl_snat_port_min on */
	__u32 step; /* to the next one */
	bool local; /* those of the node's own range as well */
	bool found;
	__u8 pad[2];
};

/* Callback of bpf_loop: look at one port. Returns 1 to stop. */
static long bl_source_port_look(__u32 index, void *arg)
{
	const struct bl_source_port_entry *ports = bl_value(bl_source_port);
	struct bl_flow_work *work = bl_flow_work_lookup();
	struct bl_source_port_search *search = arg;
	__u32 range = bl_snat_port_max - bl_snat_port_min + 1;
	__u16 port = bl_snat_port_min + (search->start + index * search->step) % range;

	if (!work)
		return 1;
	if (bl_source_port_has(ports->reserved, port) ||
	    (!search->local && bl_source_port_local(ports, port)))
		return 0;
	work->key.dst_port = bpf_htons(port);
	search->found = !bl_flow_find(&work->key);
	return search->found;
}

/* When a search for a port to the backend of a reply entry's @key last found none. */
static __always_inline struct bl_exhausted_entry *bl_exhausted_lookup(const struct bl_flow_key *key)
{
	struct bl_exhausted_key backend = {
		.addr = key->src, .port = key->src_port, .proto = key->proto};

	return bpf_map_lookup_elem(&bl_exhausted, &backend);
}

/*
 * Look for a port that no flow has and put it into the key of the reply entry: at some all over
 * the range that are not of the node's own, then at all until one is free, which takes as many
 * looks as there are ports to a free one. False when there is none, which is looked for once a
 * second for each backend.
 */
__noinline bool bl_source_port_find(__u32 now)
{
	const struct bl_source_port_entry *ports = bl_value(bl_source_port);
	__u32 range = bl_snat_port_max - bl_snat_port_min + 1;
	struct bl_flow_work *work = bl_flow_work_lookup();
	struct bl_source_port_search search = {};
	const struct bl_exhausted_entry *exhausted;
	__u32 random = bpf_get_prandom_u32(), local, port;

	if (!work)
		return false;
	exhausted = bl_exhausted_lookup(&work->key);
	if (exhausted && exhausted->second == now)
		return false;
	search.start = (__u64)random * range >> 32;
	search.step = range / BL_SOURCE_PORT_SAMPLES + 1;
	bpf_loop(BL_SOURCE_PORT_SAMPLES, bl_source_port_look, &search, 0);
	if (!search.found) {
		/* The free ones are there, where nothing was taken so far. */
		local = ports->local_max - ports->local_min + 1;
		port = ports->local_min + ((__u64)random * local >> 32);
		search.start = port < bl_snat_port_min ? 0 : port - bl_snat_port_min;
		search.step = 1;
		search.local = true;
		bpf_loop(range, bl_source_port_look, &search, 0);
	}
	return search.found;
}

/* Count SNAT port exhaustion: all ports to the backend of a reply entry's @key are in use. */
static __noinline void bl_source_port_exhausted(const struct bl_flow_key *key, __u32 backend_id,
						__u32 now)
{
	struct bl_exhausted_key backend = {
		.addr = key->src, .port = key->src_port, .proto = key->proto};
	struct bl_exhausted_entry fresh = {.count = 1, .second = now, .backend_id = backend_id};
	struct bl_exhausted_entry *known = bpf_map_lookup_elem(&bl_exhausted, &backend);

	bl_count(BL_REASON_NO_SOURCE_PORT);
	if (known) {
		__sync_fetch_and_add(&known->count, 1);
		known->second = now;
		return;
	}
	bpf_map_update_elem(&bl_exhausted, &backend, &fresh, BPF_NOEXIST);
}

/*
 * Whether a Service is served to sockets where replies like @key go: with UDP, a backend on
 * this node that answers by sendto() would have its answer balanced.
 */
static __always_inline bool bl_port_serves(const struct bl_flow_key *key)
{
	return key->proto == IPPROTO_UDP && bl_frontend_of(key).kind != BL_FRONTEND_NONE;
}

/* Insert the reply entry at the source port that its key names. False when that is taken. */
__noinline bool bl_source_port_try(struct BL_CONTEXT *context,
				   const struct bl_flow_key *forward_key, bool asks)
{
	struct bl_flow_work *work = bl_flow_work_lookup();

	if (!work || !forward_key)
		return false;
	if (asks && (bl_port_serves(&work->key) ||
		     bl_port_owned(context, &work->key, bl_addr_is_ipv4(&work->key.src))))
		return false;
	return bl_flow_claim(&work->key, &work->reply) ||
	       bl_flow_owns_reply(forward_key, bl_flow_find(&work->key));
}

/*
 * Insert the reply entry of bl_flow_work at the source port that its key names, or at another
 * one where that is 0 or taken: by another flow and, with @asks, by a socket of the host or a
 * tracked connection (conntrack). The key is left to be that of the entry. False when no port was
 * free.
 */
__noinline bool bl_source_port_claim(struct BL_CONTEXT *context,
				     const struct bl_flow_key *forward_key, bool asks)
{
	struct bl_flow_work *work = bl_flow_work_lookup();
	__u32 now = bl_flow_now();

	if (!work || !forward_key)
		return false;
	if (work->key.dst_port && bl_source_port_try(context, forward_key, asks))
		return true;
	for (int i = 0; i < BL_SOURCE_PORT_TRIES && bl_source_port_find(now); i++) {
		if (bl_source_port_try(context, forward_key, asks))
			return true;
	}
	return false;
}
