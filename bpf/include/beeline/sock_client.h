/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A socket as the client of a Service. The program that includes this file defines
 * BL_SOCK_CONTEXT, the type of its context, whose field sk is a socket in the client's network
 * namespace; bl_context_netns, the cookie of that; and bl_context_source, the address that the
 * client's socket is bound to, the any-address when it is not.
 */
#pragma once

#include <beeline/service.h>
#include <beeline/source.h>

/* The hook that runs: what it may do differs. */
enum bl_sock_hook {
	BL_SOCK_CONNECT,
	BL_SOCK_SENDMSG,
};

/* A socket as the client of a Service. */
struct bl_client {
	struct BL_SOCK_CONTEXT *ctx;
	enum bl_sock_hook hook;
	bool ipv4;
};

static __always_inline enum bl_active_kind bl_client_active(void)
{
	return BL_ACTIVE_SOCKETS;
}

static __always_inline bool bl_client_meets_node(const struct bl_client *client,
						 const struct bl_dst *dst)
{
	return bl_node_addr_serves(dst, bl_context_netns(client->ctx));
}

/*
 * connect() of a datagram socket sends nothing, and resolvers use it with any
 * port to learn a source address; the undeclared port is refused when a datagram
 * is sent.
 */
static __always_inline bool bl_client_sends(const struct bl_client *client,
					    const struct bl_dst *dst)
{
	return client->hook == BL_SOCK_SENDMSG || dst->proto != IPPROTO_UDP;
}

static __always_inline bool bl_client_allowed(const struct bl_client *client,
					      const struct bl_dst *dst, __u32 service)
{
	union bl_addr source = bl_context_source(client->ctx, client->ipv4);

	return bl_source_allowed(client->ctx->sk, &source, service, dst->tail, client->ipv4);
}

/* A client with a socket on this node is inside of the cluster. */
static __always_inline enum bl_frontend_flag bl_client_policy(const struct bl_client *client)
{
	(void)client;
	return BL_FRONTEND_INTERNAL_LOCAL;
}

/* The hash by which BL_ALGORITHM_SOURCE_HASH goes. Global: verified once. */
__noinline __u32 bl_sock_source_hash(struct BL_SOCK_CONTEXT *ctx, bool ipv4)
{
	union bl_addr addr BL_ALIGNED = bl_context_source(ctx, ipv4);

	addr = bl_source_first(ctx->sk, &addr, ipv4);
	return bl_hash_final(bl_hash_addr(0, &addr));
}

static __always_inline __u32 bl_client_hash(const struct bl_client *client)
{
	return bl_sock_source_hash(client->ctx, client->ipv4);
}

/* A connection gets a random place of the ring; the socket itself keeps its backend. */
static __always_inline bool bl_client_hash_flow(const struct bl_client *client, bool affinity,
						__u32 *hash)
{
	(void)client;
	(void)affinity;
	(void)hash;
	return false;
}

/* See bl_affinity_recall. Not inline, as the next one: affinity is rare, and verified once. */
__noinline __u64 bl_sock_recall(const struct bl_affinity_key *client, __u32 timeout, __u32 member)
{
	struct bl_affinity_key key;

	if (!client)
		return BL_NO_REF;
	key = *client;
	return bl_affinity_recall(bpf_map_lookup_elem(&bl_affinity, &key), timeout, key.service,
				  member);
}

/* See bl_affinity_remember. */
__noinline __u64 bl_sock_remember_client(const struct bl_affinity_key *client, __u32 timeout,
					 __u32 member, __u64 backend)
{
	struct bl_affinity_key key;

	if (!client)
		return backend;
	key = *client;
	return bl_affinity_remember(&bl_affinity, &key, timeout, key.service, member, backend);
}

/* The client is the network namespace. */
static __always_inline struct bl_affinity_key bl_client_key(const struct bl_client *client,
							    const struct bl_target *target)
{
	return (struct bl_affinity_key){
		.netns = bl_context_netns(client->ctx),
		.service = target->frontend.service,
	};
}

static __always_inline __u64 bl_client_recall(const struct bl_client *client,
					      const struct bl_target *target, __u32 member)
{
	struct bl_affinity_key key = bl_client_key(client, target);

	return bl_sock_recall(&key, target->service->affinity, member);
}

static __always_inline __u64 bl_client_remember(const struct bl_client *client,
						const struct bl_target *target, __u32 member,
						__u64 backend)
{
	struct bl_affinity_key key = bl_client_key(client, target);

	return bl_sock_remember_client(&key, target->service->affinity, member, backend);
}

/* Whether sockets of the client's network namespace are served. */
static __always_inline bool bl_sock_served(struct BL_SOCK_CONTEXT *ctx)
{
	return !bl_host_sockets_only || bl_context_netns(ctx) == bl_host_netns;
}
