/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The agent's question when an endpoint is gone: which connected UDP sockets go to it.
 */
#pragma once

#include <beeline/sock.h>
#include <beeline/source.h>

/* Whether @sock says that a Service has connected the socket of @query to its peer. */
static __always_inline bool bl_udp_answers(const struct bl_sock_entry *sock,
					   const struct bl_udp_query *query)
{
	return sock->vip_port && sock->state == BL_SOCK_CONNECTED &&
	       sock->port == query->peer_port && bl_addr_equal(&sock->addr, &query->peer);
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
 * The Service that the peer of a connected socket is to serve: the one that has led it there, or
 * the one to which the address that it asked for leads by now.
 */
static __always_inline __u32 bl_udp_owned(const struct bl_sock_entry *sock)
{
	struct bl_flow_key key = {
		.dst = sock->vip, .dst_port = sock->vip_port, .proto = IPPROTO_UDP};

	return bl_frontend_owner(&key, sock->service);
}

/*
 * Which Service has led a connected UDP socket to its peer: the agent asks by a test run
 * in the socket's network namespace, for the kernel lists sockets, but not what they
 * store. Returns the id of the Service, as of bl_udp_owned, or BL_UDP_NO_SERVICE. Never
 * attached.
 */
SEC("tc")
int bl_udp_service(struct __sk_buff *skb)
{
	__u32 service = BL_UDP_NO_SERVICE;
	const struct bl_sock_entry *sock;
	struct bl_udp_query query;
	struct bpf_sock *sk;

	if (bpf_skb_load_bytes(skb, 0, &query, sizeof(query)))
		return service;
	sock = bl_udp_place(query.cookie);
	if (sock && sock->owner == bl_udp_owner(query.cookie))
		return bl_udp_answers(sock, &query) ? bl_udp_owned(sock) : service;
	sk = bl_udp_socket(skb, &query);
	if (!sk)
		return service;
	sock = bpf_sk_storage_get(&bl_sock, sk, NULL, 0);
	if (sock && bl_udp_answers(sock, &query))
		service = bl_udp_owned(sock);
	bpf_sk_release(sk);
	return service;
}
