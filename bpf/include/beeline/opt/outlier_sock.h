/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Outlier detection of the node's own sockets: whether TCP gets a connection, and each time that it
 * sends a SYN again. When it is established its packets cost nothing, its end a few calls.
 */
#pragma once

#include <bpf/bpf_core_read.h>
#include <beeline/opt/outlier.h>
#include <beeline/sock.h>
#include <beeline/source.h>

#define BL_OUTLIER_CALLBACKS (BPF_SOCK_OPS_STATE_CB_FLAG | BPF_SOCK_OPS_RTO_CB_FLAG)

/* Have it told what becomes of a connection that begins, to a backend of a Service that asks for it. */
static __always_inline void bl_outlier_follow(struct bpf_sock_ops *ctx,
					      const struct bl_sock_entry *sock)
{
	const struct bl_service_entry *service;

	if (!bl_outlier_used())
		return;
	service = bl_service_lookup(sock->service);
	if (service && service->outliers)
		bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BL_OUTLIER_CALLBACKS);
}

/*
 * TCP sends a SYN again, or the connection leaves the state SYN_SENT: it is established, or not. One
 * that the process itself has given up tells nothing. The callbacks stay, for programs of others may want
 * the same ones.
 */
static __always_inline void bl_outlier_told(struct bpf_sock_ops *ctx,
					    const struct bl_sock_entry *sock)
{
	struct sock *kernel_sk;
	bool failed = true;

	if (ctx->op == BPF_SOCK_OPS_RTO_CB) {
		if (ctx->state != BPF_TCP_SYN_SENT)
			return;
	} else {
		if (ctx->args[0] != BPF_TCP_SYN_SENT)
			return;
		failed = ctx->args[1] == BPF_TCP_CLOSE;
		kernel_sk = failed ? bl_source_sock(ctx->sk) : NULL;
		if (failed && (!kernel_sk || !BPF_CORE_READ(kernel_sk, sk_err)))
			return;
	}
	bl_outlier_note(sock->backend.id, sock->backend.generation, ~0U, failed);
}
