// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Services reached through sockets: the destination is rewritten before a packet
 * exists, so nothing is done per packet.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#include <beeline/types.h>
#include <beeline/maps.h>
#include <beeline/table.h>
#include <beeline/frontend.h>
#include <beeline/select.h>
#include <beeline/source.h>

#define ECONNREFUSED 111
#define EHOSTUNREACH 113

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

/* Return values of the programs of this type. */
enum bl_sock_verdict {
	BL_SOCK_REFUSE,
	BL_SOCK_PROCEED,
};

/* The hook that runs: what it may do differs. */
enum bl_sock_hook {
	BL_SOCK_CONNECT,
	BL_SOCK_SENDMSG,
};

/* Address and port of @dst; the rest is set by bl_sock_protocol. */
static __always_inline void bl_sock_dst4(struct bpf_sock_addr *ctx, struct bl_dst *dst)
{
	dst->high = 0;
	dst->low = BL_MAPPED(ctx->user_ip4);
	dst->port = (__be16)ctx->user_port;
	dst->ipv4 = true;
}

static __always_inline void bl_sock_dst6(struct bpf_sock_addr *ctx, struct bl_dst *dst)
{
	dst->high = *(__u64 *)&ctx->user_ip6[0];
	dst->low = *(__u64 *)&ctx->user_ip6[2];
	dst->port = (__be16)ctx->user_port;
	dst->ipv4 = !dst->high && BL_IS_MAPPED(dst->low);
}

/* Give the socket address another one; @addr is BL_ALIGNED. */
static __always_inline void bl_sock_rewrite4(struct bpf_sock_addr *ctx, const union bl_addr *addr,
					     __be16 port)
{
	ctx->user_ip4 = addr->word[3];
	ctx->user_port = port;
}

static __always_inline void bl_sock_rewrite6(struct bpf_sock_addr *ctx, const union bl_addr *addr,
					     __be16 port)
{
	*(__u64 *)&ctx->user_ip6[0] = ((const __u64 *)addr)[0];
	*(__u64 *)&ctx->user_ip6[2] = ((const __u64 *)addr)[1];
	ctx->user_port = port;
}

/* Fail the system call with the error that stands for @reason. */
static __always_inline int bl_sock_refuse(enum bl_reason reason)
{
	bl_count(reason);
	bpf_set_retval(bl_reason_drops(reason) ? -EHOSTUNREACH : -ECONNREFUSED);
	return BL_SOCK_REFUSE;
}

/* As bl_sock_refuse, and on the Service's account. */
static __always_inline int bl_sock_refuse_service(struct bl_service_stat_entry *stat,
						  enum bl_reason reason)
{
	stat->refused++;
	return bl_sock_refuse(reason);
}

/* The address that the socket is bound to; the any-address when it is not. */
static __always_inline union bl_addr bl_sock_source(struct bpf_sock *sk, bool ipv4)
{
	union bl_addr addr = {};
	__be32 ip4;

	if (ipv4) {
		ip4 = sk->src_ip4;
		/* Else clang joins both branches into arithmetic on @sk. */
		barrier_var(ip4);
		bl_addr_set_ipv4(&addr, ip4);
		return addr;
	}
	addr.word[0] = sk->src_ip6[0];
	addr.word[1] = sk->src_ip6[1];
	addr.word[2] = sk->src_ip6[2];
	addr.word[3] = sk->src_ip6[3];
	return addr;
}

/*
 * The frontend behind @dst; kind BL_FRONTEND_NONE when @dst is none, with @reason
 * set when it must be refused all the same, else to BL_REASON_COUNT.
 *
 * connect() of a datagram socket sends nothing, and resolvers use it with any
 * port to learn a source address; the undeclared port is refused when a datagram
 * is sent.
 */
static __always_inline struct bl_frontend_entry bl_sock_frontend(struct bpf_sock_addr *ctx,
								 const struct bl_dst *dst,
								 enum bl_sock_hook hook,
								 enum bl_reason *reason)
{
	struct bl_frontend_entry frontend = bl_frontend_get(dst->high, dst->low, dst->tail);

	*reason = BL_REASON_COUNT;
	/* The any-address is a key of NodePorts, and to some clients an address. */
	if (frontend.kind != BL_FRONTEND_NONE && frontend.kind != BL_FRONTEND_NODE_PORT)
		return frontend;
	frontend = bl_node_port_get(dst);
	if (frontend.kind != BL_FRONTEND_NONE &&
	    bl_node_addr_serves(dst, bpf_get_netns_cookie(ctx)))
		return frontend;
	frontend.kind = BL_FRONTEND_NONE;
	if (hook == BL_SOCK_SENDMSG || dst->proto != IPPROTO_UDP)
		*reason = bl_undeclared(dst);
	return frontend;
}

/* The hash by which BL_ALGORITHM_SOURCE_HASH goes. Global: verified once. */
__noinline __u32 bl_sock_source_hash(struct bpf_sock_addr *ctx, bool ipv4)
{
	union bl_addr addr BL_ALIGNED = bl_sock_source(ctx->sk, ipv4);

	addr = bl_source_first(ctx->sk, &addr, ipv4);
	return bl_hash_spread(bl_hash_addr(0, &addr));
}

/*
 * The number by which a Service picks a slot of @set for the connection of a socket to
 * @dst. It has no source port yet, so with BL_ALGORITHM_MAGLEV its connections are
 * spread over the ring; the socket itself keeps them where they are.
 */
static __always_inline __u32 bl_sock_spread(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					    __u16 algorithm,
					    const struct bl_service_stat_entry *stat, __u32 service,
					    __u64 set)
{
	union bl_addr addr BL_ALIGNED;

	switch (algorithm) {
	case BL_ALGORITHM_ROUND_ROBIN:
	case BL_ALGORITHM_WEIGHTED_ROUND_ROBIN:
		return bl_turn(stat, service, set);
	case BL_ALGORITHM_SOURCE_HASH:
		return bl_sock_source_hash(ctx, dst->ipv4);
	case BL_ALGORITHM_DESTINATION_HASH:
		bl_dst_get_addr(dst, &addr);
		return bl_hash_spread(bl_hash_addr(0, &addr));
	}
	return bl_random(stat, service);
}

/* The backend of a new connection to @dst, which is of @frontend. */
static __always_inline struct bl_choice bl_sock_select(struct bpf_sock_addr *ctx,
						       const struct bl_dst *dst,
						       struct bl_frontend_entry frontend,
						       const struct bl_service_stat_entry *stat)
{
	struct bl_choice choice = {.reason = BL_REASON_BROKEN_TABLE};
	const struct bl_service_entry *service = bl_service_lookup(frontend.service);
	struct bl_affinity_key key = {.service = frontend.service};
	__u32 random = bl_random(stat, frontend.service);
	__u32 member;
	__u64 set;

	if (!service)
		return choice;
	set = bl_service_set(service, unlikely(frontend.flags & BL_FRONTEND_INTERNAL_LOCAL),
			     &member);
	if (unlikely(service->algorithm != BL_ALGORITHM_RANDOM))
		random = bl_sock_spread(ctx, dst, service->algorithm, stat, frontend.service, set);
	if (unlikely(service->affinity)) {
		key.netns = bpf_get_netns_cookie(ctx);
		choice = bl_affinity_select(&bl_affinity, service, &key, frontend.service, set,
					    member, random);
	} else {
		choice = bl_set_select(set, random);
	}
	choice.member = member;
	return choice;
}

/*
 * Remember on the socket that it is connected to @dst by way of @choice. A socket
 * that cannot be marked is served all the same.
 */
static __always_inline void bl_sock_remember(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					     __u32 service, const struct bl_choice *choice)
{
	struct bl_sock_entry *sock;

	sock = bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
	if (unlikely(!sock)) {
		bl_count(BL_REASON_SOCK_NOT_STORED);
		return;
	}
	bl_dst_get_addr(dst, &sock->vip);
	sock->vip_port = dst->port;
	sock->addr = choice->backend->addr;
	sock->port = choice->backend->port;
	sock->service = service;
	sock->backend = choice->ref;
}

/*
 * The socket connects to something that is no Service. Not to be called when
 * connect() is refused: a datagram socket then stays connected as it was.
 */
static __always_inline void bl_sock_forget(struct bpf_sock_addr *ctx)
{
	struct bl_sock_entry *sock = bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, 0);

	if (sock)
		sock->vip_port = 0;
}

/*
 * Whether the socket is to be served and its protocol one that Services carry; sets
 * dst->proto.
 */
static __always_inline bool bl_sock_protocol(struct bpf_sock_addr *ctx, struct bl_dst *dst)
{
	if (bl_host_sockets_only && bpf_get_netns_cookie(ctx) != bl_host_netns)
		return false;
	dst->pad = 0;
	switch (ctx->protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		dst->proto = ctx->protocol;
		return true;
	case IPPROTO_MPTCP:
		dst->proto = IPPROTO_TCP;
		return true;
	}
	return false;
}

/* A Service that a socket may use. stat is NULL when the address is no Service. */
struct bl_sock_service {
	struct bl_frontend_entry frontend;
	struct bl_service_stat_entry *stat;
};

/*
 * Find the Service behind @dst. Returns BL_SOCK_REFUSE with the error set when
 * @dst must not be reached from this socket.
 */
static __always_inline int bl_sock_admit(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					 enum bl_sock_hook hook, struct bl_sock_service *service)
{
	enum bl_reason reason;
	union bl_addr source;

	service->stat = NULL;
	service->frontend = bl_sock_frontend(ctx, dst, hook, &reason);
	if (service->frontend.kind == BL_FRONTEND_NONE) {
		if (unlikely(reason != BL_REASON_COUNT))
			return bl_sock_refuse(reason);
		return BL_SOCK_PROCEED;
	}
	service->stat = bl_service_stat_lookup(service->frontend.service);
	if (unlikely(!service->stat))
		return bl_sock_refuse(BL_REASON_BROKEN_TABLE);
	if (unlikely(service->frontend.flags & BL_FRONTEND_SOURCE_RANGES)) {
		source = bl_sock_source(ctx->sk, dst->ipv4);
		if (!bl_source_allowed(ctx->sk, &source, service->frontend.service, dst->ipv4))
			return bl_sock_refuse_service(service->stat, BL_REASON_SOURCE_RANGE);
	}
	return BL_SOCK_PROCEED;
}

/*
 * Choose a backend of @service for a new connection. Returns BL_SOCK_REFUSE with
 * the error set, and choice->backend NULL, when none may serve.
 */
static __always_inline int bl_sock_choose(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					  const struct bl_sock_service *service,
					  struct bl_choice *choice)
{
	*choice = bl_sock_select(ctx, dst, service->frontend, service->stat);
	if (unlikely(!choice->backend))
		return bl_sock_refuse_service(service->stat, choice->reason);
	service->stat->connections++;
	return BL_SOCK_PROCEED;
}

/*
 * connect(): the backend in @choice takes the place of @dst; NULL when @dst stays.
 * Returns BL_SOCK_REFUSE with the error set, or BL_SOCK_PROCEED.
 */
static __always_inline int bl_sock_connect(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					   struct bl_choice *choice)
{
	struct bl_sock_service service;
	int verdict = bl_sock_admit(ctx, dst, BL_SOCK_CONNECT, &service);

	choice->backend = NULL;
	if (verdict == BL_SOCK_REFUSE)
		return verdict;
	if (!service.stat) {
		bl_sock_forget(ctx);
		return BL_SOCK_PROCEED;
	}
	verdict = bl_sock_choose(ctx, dst, &service, choice);
	if (choice->backend)
		bl_sock_remember(ctx, dst, service.frontend.service, choice);
	return verdict;
}

SEC("cgroup/connect4")
int bl_connect4(struct bpf_sock_addr *ctx)
{
	struct bl_choice choice;
	struct bl_dst dst;
	int verdict;

	if (!bl_sock_protocol(ctx, &dst))
		return BL_SOCK_PROCEED;
	bl_sock_dst4(ctx, &dst);
	verdict = bl_sock_connect(ctx, &dst, &choice);
	if (choice.backend)
		bl_sock_rewrite4(ctx, &choice.backend->addr, choice.backend->port);
	return verdict;
}

SEC("cgroup/connect6")
int bl_connect6(struct bpf_sock_addr *ctx)
{
	struct bl_choice choice;
	struct bl_dst dst;
	int verdict;

	if (!bl_sock_protocol(ctx, &dst))
		return BL_SOCK_PROCEED;
	bl_sock_dst6(ctx, &dst);
	verdict = bl_sock_connect(ctx, &dst, &choice);
	if (choice.backend)
		bl_sock_rewrite6(ctx, &choice.backend->addr, choice.backend->port);
	return verdict;
}

static __always_inline struct bl_udp_peer_key bl_udp_key(__u64 cookie, const struct bl_dst *peer,
							 enum bl_udp_direction direction)
{
	struct bl_udp_peer_key key = {
		.cookie = cookie,
		.port = peer->port,
		.direction = direction,
	};

	bl_dst_get_addr(peer, &key.addr);
	return key;
}

/*
 * Store both entries of a translation of an unconnected UDP socket, and mark the
 * socket as one whose replies need a look. Served all the same when that fails.
 */
static __always_inline void bl_udp_remember(struct bpf_sock_addr *ctx, __u64 cookie,
					    const struct bl_dst *dst,
					    const struct bl_choice *choice, __u64 now)
{
	struct bl_udp_peer_key key = bl_udp_key(cookie, dst, BL_UDP_FORWARD);
	struct bl_udp_peer_entry peer = {
		.addr = choice->backend->addr,
		.port = choice->backend->port,
		.member = choice->member,
		.backend = choice->ref,
		.last_used = now,
	};
	long failed;

	failed = bpf_map_update_elem(&bl_udp_peer, &key, &peer, BPF_ANY);
	key.addr = peer.addr;
	key.port = peer.port;
	key.direction = BL_UDP_REPLY;
	bl_dst_get_addr(dst, &peer.addr);
	peer.port = dst->port;
	failed |= bpf_map_update_elem(&bl_udp_peer, &key, &peer, BPF_ANY);
	if (failed || !bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE))
		bl_count(BL_REASON_UDP_PEER_NOT_STORED);
}

/*
 * The backend of @service that this socket used for @dst, if it may go on using
 * it. Both entries are touched, so that they grow old together. Where two Service
 * addresses lead a socket to one backend, replies show the one last sent to.
 */
static __always_inline const struct bl_backend_entry *
bl_udp_recall(__u64 cookie, const struct bl_dst *dst, __u32 service, __u64 now)
{
	struct bl_udp_peer_key key = bl_udp_key(cookie, dst, BL_UDP_FORWARD);
	struct bl_udp_peer_entry *reply, *peer = bpf_map_lookup_elem(&bl_udp_peer, &key);
	const struct bl_backend_entry *backend;

	if (!peer || now - peer->last_used >= bl_udp_peer_idle)
		return NULL;
	backend = bl_backend_recall(peer->backend, service, peer->member);
	if (!backend)
		return NULL;
	key.addr = backend->addr;
	key.port = backend->port;
	key.direction = BL_UDP_REPLY;
	reply = bpf_map_lookup_elem(&bl_udp_peer, &key);
	if (!reply)
		return NULL;
	bl_dst_get_addr(dst, &reply->addr);
	reply->port = dst->port;
	peer->last_used = now;
	return backend;
}

/* The socket sends to something that is no Service: its replies are shown as such. */
static __always_inline void bl_udp_forget(struct bpf_sock_addr *ctx, const struct bl_dst *dst)
{
	struct bl_udp_peer_key key;

	if (!bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, 0))
		return;
	key = bl_udp_key(bpf_get_socket_cookie(ctx), dst, BL_UDP_REPLY);
	if (bpf_map_lookup_elem(&bl_udp_peer, &key))
		bpf_map_delete_elem(&bl_udp_peer, &key);
}

/*
 * sendmsg() on an unconnected socket: the backend of this datagram. Returns as
 * bl_sock_connect.
 */
static __always_inline int bl_sock_sendmsg(struct bpf_sock_addr *ctx, const struct bl_dst *dst,
					   struct bl_choice *choice)
{
	struct bl_sock_service service;
	int verdict = bl_sock_admit(ctx, dst, BL_SOCK_SENDMSG, &service);
	__u64 cookie, now;

	choice->backend = NULL;
	if (verdict == BL_SOCK_REFUSE)
		return verdict;
	if (!service.stat) {
		bl_udp_forget(ctx, dst);
		return BL_SOCK_PROCEED;
	}
	cookie = bpf_get_socket_cookie(ctx);
	now = bpf_ktime_get_coarse_ns();
	if (bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, 0)) {
		choice->backend = bl_udp_recall(cookie, dst, service.frontend.service, now);
		if (choice->backend)
			return BL_SOCK_PROCEED;
	}
	verdict = bl_sock_choose(ctx, dst, &service, choice);
	if (choice->backend)
		bl_udp_remember(ctx, cookie, dst, choice, now);
	return verdict;
}

SEC("cgroup/sendmsg4")
int bl_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct bl_choice choice;
	struct bl_dst dst;
	int verdict;

	if (!bl_sock_protocol(ctx, &dst))
		return BL_SOCK_PROCEED;
	bl_sock_dst4(ctx, &dst);
	verdict = bl_sock_sendmsg(ctx, &dst, &choice);
	if (choice.backend)
		bl_sock_rewrite4(ctx, &choice.backend->addr, choice.backend->port);
	return verdict;
}

SEC("cgroup/sendmsg6")
int bl_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct bl_choice choice;
	struct bl_dst dst;
	int verdict;

	if (!bl_sock_protocol(ctx, &dst))
		return BL_SOCK_PROCEED;
	bl_sock_dst6(ctx, &dst);
	verdict = bl_sock_sendmsg(ctx, &dst, &choice);
	if (choice.backend)
		bl_sock_rewrite6(ctx, &choice.backend->addr, choice.backend->port);
	return verdict;
}

/*
 * The Service address that stands for @peer on this socket: the one it connected
 * to, or with @unconnected the one it last sent to that led to @peer. False when
 * @peer is what the application knows.
 */
static __always_inline bool bl_sock_vip(struct bpf_sock_addr *ctx, const struct bl_dst *peer,
					bool unconnected, union bl_addr *vip, __be16 *port)
{
	struct bl_sock_entry *sock = bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, 0);
	struct bl_udp_peer_entry *reply;
	struct bl_udp_peer_key key;

	if (!sock)
		return false;
	/* No program runs when a socket dissolves its association. */
	if (sock->vip_port && ctx->sk->dst_port && sock->port == peer->port &&
	    bl_dst_has_addr(peer, &sock->addr)) {
		*vip = sock->vip;
		*port = sock->vip_port;
		return true;
	}
	if (!unconnected)
		return false;
	key = bl_udp_key(bpf_get_socket_cookie(ctx), peer, BL_UDP_REPLY);
	reply = bpf_map_lookup_elem(&bl_udp_peer, &key);
	if (!reply)
		return false;
	*vip = reply->addr;
	*port = reply->port;
	return true;
}

static __always_inline int bl_sock_show4(struct bpf_sock_addr *ctx, bool unconnected)
{
	union bl_addr vip BL_ALIGNED;
	struct bl_dst peer = {};
	__be16 port;

	bl_sock_dst4(ctx, &peer);
	if (bl_sock_vip(ctx, &peer, unconnected, &vip, &port))
		bl_sock_rewrite4(ctx, &vip, port);
	return BL_SOCK_PROCEED;
}

static __always_inline int bl_sock_show6(struct bpf_sock_addr *ctx, bool unconnected)
{
	union bl_addr vip BL_ALIGNED;
	struct bl_dst peer = {};
	__be16 port;

	bl_sock_dst6(ctx, &peer);
	if (bl_sock_vip(ctx, &peer, unconnected, &vip, &port))
		bl_sock_rewrite6(ctx, &vip, port);
	return BL_SOCK_PROCEED;
}

SEC("cgroup/recvmsg4")
int bl_recvmsg4(struct bpf_sock_addr *ctx)
{
	return bl_sock_show4(ctx, true);
}

SEC("cgroup/recvmsg6")
int bl_recvmsg6(struct bpf_sock_addr *ctx)
{
	return bl_sock_show6(ctx, true);
}

SEC("cgroup/getpeername4")
int bl_getpeername4(struct bpf_sock_addr *ctx)
{
	return bl_sock_show4(ctx, false);
}

SEC("cgroup/getpeername6")
int bl_getpeername6(struct bpf_sock_addr *ctx)
{
	return bl_sock_show6(ctx, false);
}

/*
 * The socket behind @query in the network namespace of the packet's device, bound to that
 * device or to none; NULL when there is none. To be released.
 */
static __always_inline struct bpf_sock *bl_udp_socket(struct __sk_buff *skb,
						      const struct bl_udp_query *query)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size = bl_sock_tuple(bl_addr_is_ipv4(&query->peer), &query->peer, query->peer_port,
				   &query->local, query->local_port, &tuple);

	return bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
}

/*
 * Which Service has led a connected UDP socket to its peer: the agent asks by a test run
 * in the socket's network namespace, for the kernel lists sockets, but not what they
 * store. Returns the id of the Service, or BL_UDP_NO_SERVICE. Never attached.
 */
SEC("tc")
int bl_udp_service(struct __sk_buff *skb)
{
	__u32 service = BL_UDP_NO_SERVICE;
	const struct bl_sock_entry *sock;
	struct bl_udp_query query BL_ALIGNED;
	struct bpf_sock *sk;

	if (bpf_skb_load_bytes(skb, 0, &query, sizeof(query)))
		return service;
	sk = bl_udp_socket(skb, &query);
	if (!sk)
		return service;
	sock = bpf_sk_storage_get(&bl_sock, sk, NULL, 0);
	if (sock && sock->vip_port && sock->port == query.peer_port &&
	    bl_addr_equal(&sock->addr, &query.peer))
		service = sock->service;
	bpf_sk_release(sk);
	return service;
}

char _license[] SEC("license") = "Dual BSD/GPL";
