/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events of sockets.
 */
#pragma once

#include <beeline/monitor.h>
#include <beeline/sock.h>

/* bl_monitor_admit for an event of a socket, where anybody listens. */
static __always_inline __u32 bl_monitor_wanted_sock(void *ctx, enum bl_event_kind kind)
{
	return bl_monitored() ? bl_monitor_admit(kind, bl_hash_final(bpf_get_socket_cookie(ctx)))
			      : 0;
}

static __always_inline void bl_event_backend_addr(struct bl_event *event, __u32 id)
{
	const struct bl_backend_entry *backend = bl_backend_lookup(id);

	if (!backend)
		return;
	event->backend = backend->addr;
	event->backend_port = backend->port;
	bl_event_backend(event, id, backend->generation);
}

/*
 * Tell of a system call for @dst: with @backend the id of the one that is chosen, or ~0; @service
 * as in the event, and @what by BL_EVENT.
 */
__noinline int bl_event_sock(struct bpf_sock_addr *ctx, const struct bl_dst *dst, __u32 service,
			     __u32 backend, __u32 what)
{
	struct bl_event *event;

	if (!dst)
		return 0;
	for (__u32 place = 0; bl_event_waits(what, place); place++) {
		event = bl_event_begin(place, what);
		if (!event)
			continue;
		event->service = service;
		event->cookie = bpf_get_socket_cookie(ctx);
		event->netns = bpf_get_netns_cookie(ctx);
		event->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(event->comm, sizeof(event->comm));
		event->client = bl_context_source(ctx, dst->ipv4);
		event->client_port = bpf_htons(ctx->sk->src_port);
		bl_dst_get_addr(dst, &event->dst);
		event->dst_port = dst->port;
		event->proto = dst->proto;
		if (backend != ~0U)
			bl_event_backend_addr(event, backend);
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}

/* Note what a socket was led to that has ended; @sock is its entry. */
static __always_inline void bl_event_ended(struct bl_event *event, const struct bl_sock_entry *sock)
{
	event->dst = sock->vip;
	event->dst_port = sock->vip_port;
	event->backend = sock->addr;
	event->backend_port = sock->port;
	event->service = sock->service;
	bl_event_backend(event, sock->backend.id, sock->backend.generation);
}

/* Tell those of @what, by BL_EVENT, that a socket is closed; @sock is its entry. */
static __noinline int bl_event_release(struct bpf_sock *ctx, const struct bl_sock_entry *sock,
				       __u32 what)
{
	struct bl_event *event;

	for (__u32 place = 0; bl_event_waits(what, place); place++) {
		event = bl_event_begin(place, what);
		if (!event)
			continue;
		event->cookie = bpf_get_socket_cookie(ctx);
		event->proto = bl_sock_carries(ctx->protocol);
		bl_event_ended(event, sock);
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}
