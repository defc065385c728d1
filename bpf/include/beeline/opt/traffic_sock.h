/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The packets and bytes of the node's own sockets: of each TCP connection when it ends, by what the
 * kernel has counted of it, so that its packets cost nothing.
 */
#pragma once

#include <beeline/frontend.h>
#include <beeline/monitor_sock.h>
#include <beeline/opt/traffic.h>

enum bl_traffic_headers {
	/* Of most packets: TCP's header with timestamps, and that of IP. */
	BL_TRAFFIC_HEADERS_IPV4 = 32 + 20,
	BL_TRAFFIC_HEADERS_IPV6 = 32 + 40,
};

/* Have the end of a connection told of that a Service has led to a backend. */
static __always_inline void bl_traffic_follow(struct bpf_sock_ops *ctx, struct bl_sock_entry *sock)
{
	if (!bl_traffic_sampling)
		return;
	if (!bpf_sock_ops_cb_flags_set(ctx,
				       ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG))
		sock->member |= BL_MEMBER_FOLLOWED;
}

/* The address of the socket itself. */
static __always_inline void bl_sockops_source(struct bpf_sock_ops *ctx, bool ipv4,
					      union bl_addr *addr)
{
	if (ipv4) {
		bl_addr_set_ipv4(addr, ctx->local_ip4);
		return;
	}
	addr->word[0] = ctx->local_ip6[0];
	addr->word[1] = ctx->local_ip6[1];
	addr->word[2] = ctx->local_ip6[2];
	addr->word[3] = ctx->local_ip6[3];
}

/* Tell that the connection has ended. */
static __noinline int bl_event_tcp(struct bpf_sock_ops *ctx, const struct bl_sock_entry *sock,
				   const struct bl_traffic_entry *traffic)
{
	const struct bl_backend_entry *backend =
		bl_event_backend(sock->backend.id, sock->backend.generation);
	union bl_addr client BL_ALIGNED;
	struct bl_event *event;
	__u32 what;

	bl_sockops_source(ctx, bl_addr_is_ipv4(&sock->addr), &client);
	what = bl_monitor_admit_ended(ctx, sock, backend, &client);
	for (__u32 place = 0; bl_event_waits(what, place); place++) {
		event = bl_event_begin(place, what);
		if (!event)
			continue;
		event->cookie = bpf_get_socket_cookie(ctx);
		event->proto = IPPROTO_TCP;
		event->traffic = *traffic;
		event->client = client;
		event->client_port = bpf_htons(ctx->local_port);
		bl_event_ended(event, sock, backend);
		bpf_ringbuf_submit(event, 0);
	}
	return 0;
}

/* Count both directions of a connection for a Service or a backend. */
static __always_inline void bl_traffic_add_sock(enum bl_traffic_kind kind, __u32 id,
						const struct bl_traffic_entry *of)
{
	bl_traffic_add(kind, id, false, of->to_backend.bytes, of->to_backend.packets);
	bl_traffic_add(kind, id, true, of->to_client.bytes, of->to_client.packets);
}

/* Count a connection of @sock for its Service and its backend, unless they have gone meanwhile. */
static __always_inline void bl_traffic_count_sock(const struct bl_sock_entry *sock,
						  const struct bl_traffic_entry *of)
{
	struct bl_flow_key key = {
		.dst = sock->vip, .dst_port = sock->vip_port, .proto = IPPROTO_TCP};
	const struct bl_backend_entry *backend = bl_backend_lookup(sock->backend.id);
	struct bl_frontend_entry frontend = bl_frontend_of(&key);

	if (frontend.kind != BL_FRONTEND_NONE && frontend.service == sock->service)
		bl_traffic_add_sock(BL_TRAFFIC_SERVICE, sock->service, of);
	if (backend && bl_same_user(backend->generation, sock->backend.generation))
		bl_traffic_add_sock(BL_TRAFFIC_BACKEND, sock->backend.id, of);
}

/* The connection has ended. */
static __always_inline void bl_traffic_end(struct bpf_sock_ops *ctx, struct bl_sock_entry *sock)
{
	struct bl_traffic_entry of = {
		.to_backend = {.packets = ctx->segs_out, .bytes = ctx->bytes_acked},
		.to_client = {.packets = ctx->segs_in, .bytes = ctx->bytes_received},
	};
	__u32 headers = BL_TRAFFIC_HEADERS_IPV6;

	if (bl_monitored())
		bl_event_tcp(ctx, sock, &of);
	if (bl_addr_is_ipv4(&sock->addr))
		headers = BL_TRAFFIC_HEADERS_IPV4;
	of.to_backend.bytes += of.to_backend.packets * headers;
	of.to_client.bytes += of.to_client.packets * headers;
	bl_traffic_count_sock(sock, &of);
	sock->member &= ~BL_MEMBER_FOLLOWED;
	sock->vip_port = 0;
}
