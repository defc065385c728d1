/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Further Services of one unconnected UDP socket: the first one is kept with the socket.
 */
#pragma once

#include <beeline/sock.h>

static __always_inline struct bl_udp_peer_key
bl_udp_key(struct bpf_sock_addr *ctx, const struct bl_dst *peer, enum bl_udp_direction direction)
{
	struct bl_udp_peer_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.port = peer->port,
		.direction = direction,
	};

	bl_dst_get_addr(peer, &key.addr);
	return key;
}

/* Store under the backend that @key names that its replies are shown as of the Service @vip. */
static __noinline bool bl_udp_store_reply(struct bl_udp_peer_key *key, const union bl_addr *vip,
					  __be16 vip_port)
{
	struct bl_udp_peer_entry peer = {.addr = *vip, .port = vip_port};

	key->direction = BL_UDP_REPLY;
	return !bpf_map_update_elem(&bl_udp_peer, key, &peer, BPF_ANY);
}

/*
 * The first Service of a socket gets another backend, or is replaced by another Service:
 * replies still in flight are shown as of it.
 */
static __noinline void bl_udp_retire(struct bpf_sock_addr *ctx, struct bl_sock_entry *sock)
{
	struct bl_udp_peer_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.addr = sock->addr,
		.port = sock->port,
	};

	if (sock->state == BL_SOCK_HIDDEN)
		return;
	if (bl_udp_store_reply(&key, &sock->vip, sock->vip_port))
		sock->spilled = true;
	else
		bl_count(BL_REASON_UDP_PEER_NOT_STORED);
}

/* Store both entries of one more Service of a socket. */
static __noinline void bl_udp_spill(struct bpf_sock_addr *ctx, struct bl_sock_entry *sock,
				    const struct bl_dst *dst, const struct bl_choice *choice)
{
	struct bl_udp_peer_key key = bl_udp_key(ctx, dst, BL_UDP_FORWARD);
	struct bl_udp_peer_entry peer = {
		.addr = choice->backend->addr,
		.port = choice->backend->port,
		.member = choice->member,
		.backend = choice->ref,
		.last_used = bpf_ktime_get_coarse_ns(),
	};
	union bl_addr vip BL_ALIGNED = key.addr;
	bool stored = !bpf_map_update_elem(&bl_udp_peer, &key, &peer, BPF_ANY);

	key.addr = peer.addr;
	key.port = peer.port;
	if (!bl_udp_store_reply(&key, &vip, dst->port) || !stored)
		bl_count(BL_REASON_UDP_PEER_NOT_STORED);
	sock->spilled = true;
}

/*
 * The backend of @service that bl_udp_peer has for @dst, if the socket may go on using it.
 * Where two Services lead a socket to one backend, replies show the one last sent to.
 */
static __noinline const struct bl_backend_entry *
bl_udp_recall_more(struct bpf_sock_addr *ctx, const struct bl_dst *dst, __u32 service)
{
	struct bl_udp_peer_key key = bl_udp_key(ctx, dst, BL_UDP_FORWARD);
	struct bl_udp_peer_entry *reply, *peer = bpf_map_lookup_elem(&bl_udp_peer, &key);
	const struct bl_backend_entry *backend;
	union bl_addr vip BL_ALIGNED = key.addr;
	__u64 now = bpf_ktime_get_coarse_ns();

	if (!peer || now - peer->last_used >= bl_udp_peer_idle)
		return NULL;
	backend = bl_backend_serving(peer->backend, service);
	if (!backend)
		return NULL;
	peer->last_used = now;
	key.addr = backend->addr;
	key.port = backend->port;
	key.direction = BL_UDP_REPLY;
	reply = bpf_map_lookup_elem(&bl_udp_peer, &key);
	if (reply) {
		reply->addr = vip;
		reply->port = dst->port;
	} else if (!bl_udp_store_reply(&key, &vip, dst->port)) {
		bl_count(BL_REASON_UDP_PEER_NOT_STORED);
	}
	return backend;
}

/*
 * Remove the entry of bl_udp_peer for replies of a backend. @addr is BL_ALIGNED.
 */
static __noinline void bl_udp_forget_reply(struct bpf_sock_addr *ctx, const union bl_addr *addr,
					   __be16 port)
{
	struct bl_udp_peer_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.addr = *addr,
		.port = port,
		.direction = BL_UDP_REPLY,
	};

	if (bpf_map_lookup_elem(&bl_udp_peer, &key))
		bpf_map_delete_elem(&bl_udp_peer, &key);
}

/* The Service that bl_udp_peer says replies of @peer are of. */
static __noinline const struct bl_udp_peer_entry *bl_udp_reply(struct bpf_sock_addr *ctx,
							       const struct bl_dst *peer)
{
	struct bl_udp_peer_key key = bl_udp_key(ctx, peer, BL_UDP_REPLY);

	return bpf_map_lookup_elem(&bl_udp_peer, &key);
}
