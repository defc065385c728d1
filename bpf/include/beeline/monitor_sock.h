/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Events of sockets.
 */
#pragma once

#include <beeline/monitor.h>
#include <beeline/sock.h>

/* bl_monitor_admit for an event of a socket. */
static __always_inline __u32 bl_monitor_admit_sock(void *ctx, __u32 what, __u32 service,
						   const union bl_addr *client,
						   const union bl_addr *backend)
{
	if (bl_monitor_full(what))
		return 0;
	return bl_monitor_admit(what, bl_hash_final(bpf_get_socket_cookie(ctx)), service, client,
				backend);
}

/*
 * Tell of a system call for @dst: with @id that of the backend that is chosen, or ~0; @service
 * as in the event, and @what by BL_EVENT.
 */
__noinline int bl_event_sock(struct bpf_sock_addr *ctx, const struct bl_dst *dst, __u32 service,
			     __u32 id, __u32 what)
{
	const struct bl_backend_entry *backend;
	union bl_addr client BL_ALIGNED;
	struct bl_event *event;

	if (!dst)
		return 0;
	backend = id != ~0U ? bl_backend_lookup(id) : NULL;
	if (backend)
		service = backend->service;
	client = bl_context_source(ctx, dst->ipv4);
	what = bl_monitor_admit_sock(ctx, what, service, &client, backend ? &backend->addr : NULL);
	for (__u32 place = 0; bl_event_waits(what, place); place++) {
		event = bl_event_begin(place, what);
		if (!event)
			continue;
		event->service = service;
		event->cookie = bpf_get_socket_cookie(ctx);
		event->netns = bpf_get_netns_cookie(ctx);
		event->pid = bpf_get_current_pid_tgid() >> 32;
		bpf_get_current_comm(event->comm, sizeof(event->comm));
		event->client = client;
		event->client_port = bpf_htons(ctx->sk->src_port);
		bl_dst_get_addr(dst, &event->dst);
		event->dst_port = dst->port;
		event->proto = dst->proto;
		if (backend) {
			event->backend = backend->addr;
			event->backend_port = backend->port;
			event->backend_id = id;
			event->node = backend->node;
		}
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}

/* bl_monitor_admit for the end of a socket that was led to @backend; @sock is its entry. */
static __always_inline __u32 bl_monitor_admit_ended(void *ctx, const struct bl_sock_entry *sock,
						    const struct bl_backend_entry *backend,
						    const union bl_addr *client)
{
	return bl_monitor_admit_sock(
		ctx, BL_EVENT(BL_EVENT_ENDED, BL_EVENT_AT_CLOSE, BL_REASON_COUNT),
		backend ? backend->service : sock->service, client, &sock->addr);
}

/* Note what a socket was led to that has ended: @backend, NULL when that is not known any more. */
static __always_inline void bl_event_ended(struct bl_event *event, const struct bl_sock_entry *sock,
					   const struct bl_backend_entry *backend)
{
	event->dst = sock->vip;
	event->dst_port = sock->vip_port;
	event->backend = sock->addr;
	event->backend_port = sock->port;
	event->service = backend ? backend->service : sock->service;
	event->backend_id = sock->backend.id;
	event->node = backend ? backend->node : 0;
}

/* Tell that a socket is closed; @sock is its entry. Who its client was is not known. */
static __noinline int bl_event_release(struct bpf_sock *ctx, const struct bl_sock_entry *sock)
{
	const struct bl_backend_entry *backend =
		bl_event_backend(sock->backend.id, sock->backend.generation);
	__u32 what = bl_monitor_admit_ended(ctx, sock, backend, NULL);
	struct bl_event *event;

	for (__u32 place = 0; bl_event_waits(what, place); place++) {
		event = bl_event_begin(place, what);
		if (!event)
			continue;
		event->cookie = bpf_get_socket_cookie(ctx);
		event->proto = bl_sock_carries(ctx->protocol);
		bl_event_ended(event, sock, backend);
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}
