/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The entry of a socket: its Service, and the backend selected for it.
 */
#pragma once

#include <beeline/service.h>
#include <beeline/source.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

/* As which protocol Services carry a socket's; 0: as none. */
static __always_inline __u8 bl_sock_carries(__u32 protocol)
{
	switch (protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
		return protocol;
	case IPPROTO_MPTCP:
		return IPPROTO_TCP;
	}
	return 0;
}

static __always_inline __u32 bl_udp_owner(__u64 cookie)
{
	return (cookie >> BL_UDP_SOCK_SHIFT) + 1;
}

/* The place in bl_udp_sock of a socket, which may be another one's. */
static __always_inline struct bl_sock_entry *bl_udp_place(__u64 cookie)
{
	__u32 index = cookie & (BL_UDP_SOCK_SIZE - 1);

	return bpf_map_lookup_elem(&bl_udp_sock, &index);
}

/*
 * The entry of a socket; NULL when it has none. UDP sockets live for a few packets, as a
 * resolver's, and a place in bl_udp_sock costs a tenth of socket storage.
 *
 * The kernel holds the socket's lock while a program runs at these hooks, so a socket that
 * threads share has one reader and writer at a time.
 */
static __always_inline struct bl_sock_entry *bl_sock_get(struct bpf_sock_addr *ctx)
{
	struct bl_sock_entry *sock;
	__u64 cookie;

	if (ctx->protocol == IPPROTO_UDP) {
		cookie = bpf_get_socket_cookie(ctx);
		sock = bl_udp_place(cookie);
		if (!sock)
			return NULL;
		if (sock->owner == bl_udp_owner(cookie))
			return sock;
		if (likely(!sock->shared))
			return NULL;
	}
	return bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, 0);
}

/*
 * Whether @sk is a socket of the kernel itself, as of NFS and each subflow of MPTCP: the kernel runs
 * no program when it is closed. False where the kernel's memory may not be read.
 */
static __noinline bool bl_sock_is_kernel(struct bpf_sock *sk)
{
	struct sock *kernel_sk = bl_source_sock(sk);

	return kernel_sk && BPF_CORE_READ_BITFIELD_PROBED(kernel_sk, sk_kern_sock);
}

/*
 * Create the entry of a socket that has none. NULL when there is no memory. A socket of the kernel
 * itself gets no place in bl_udp_sock, which only bl_release frees: it does not run for those.
 */
static __always_inline struct bl_sock_entry *bl_sock_create(struct bpf_sock_addr *ctx)
{
	struct bl_sock_entry *sock;
	__u64 cookie;

	if (ctx->protocol == IPPROTO_UDP) {
		cookie = bpf_get_socket_cookie(ctx);
		sock = bl_udp_place(cookie);
		if (!sock)
			return NULL;
		if (!sock->owner && !bl_sock_is_kernel(ctx->sk) &&
		    !__sync_val_compare_and_swap(&sock->owner, 0, bl_udp_owner(cookie)))
			return sock;
		sock->shared = true;
	}
	return bpf_sk_storage_get(&bl_sock, ctx->sk, NULL, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Whether @addr and @port are those of @dst. @addr is BL_ALIGNED. */
static __always_inline bool bl_dst_is(const struct bl_dst *dst, const union bl_addr *addr,
				      __be16 port)
{
	return dst->port == port && bl_dst_has_addr(dst, addr);
}

/* The socket's connection to the backend in @sock has ended. */
static __always_inline void bl_sock_drop(struct bl_sock_entry *sock)
{
	if (likely(!(sock->member & BL_MEMBER_COUNTED)))
		return;
	sock->member &= ~BL_MEMBER_COUNTED;
	bl_active_drop(sock->backend.id, sock->backend.generation, BL_ACTIVE_SOCKETS);
}

/* Note that the Service @dst leads the socket to the backend in @choice, and no more to another. */
static __always_inline void bl_sock_set(struct bl_sock_entry *sock, const struct bl_dst *dst,
					__u32 service, const struct bl_choice *choice,
					enum bl_sock_state state)
{
	bl_sock_drop(sock);
	bl_dst_get_addr(dst, &sock->vip);
	sock->vip_port = dst->port;
	sock->addr = choice->backend->addr;
	sock->port = choice->backend->port;
	sock->service = service;
	sock->backend = choice->ref;
	sock->member = choice->member | (choice->counted ? BL_MEMBER_COUNTED : 0);
	sock->state = state;
}

/*
 * Whether the socket is connected to the Service that @sock remembers. No program runs
 * when a socket dissolves its association, nor when connect() fails after one.
 */
static __always_inline bool bl_sock_is_connected(struct bpf_sock_addr *ctx,
						 const struct bl_sock_entry *sock)
{
	struct bpf_sock *sk = ctx->sk;

	if (sock->state != BL_SOCK_CONNECTED || !sock->vip_port || sk->dst_port != sock->port)
		return false;
	if (bl_addr_is_ipv4(&sock->addr))
		return sk->dst_ip4 == sock->addr.word[3];
	return sk->dst_ip6[0] == sock->addr.word[0] && sk->dst_ip6[1] == sock->addr.word[1] &&
	       sk->dst_ip6[2] == sock->addr.word[2] && sk->dst_ip6[3] == sock->addr.word[3];
}
