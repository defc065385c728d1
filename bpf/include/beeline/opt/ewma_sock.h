/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The round-trip time that TCP has measured, when a socket is closed.
 */
#pragma once

#include <linux/bpf.h>
#include <beeline/opt/ewma.h>
#include <beeline/sock.h>
#include <beeline/source.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct tcp_sock {
	__u32 srtt_us; /* in an eighth of a microsecond */
};

#pragma clang attribute pop

#define ECONNRESET 104

/*
 * A socket ends: if its Service balances by round-trip times, note that of its backend. A connection
 * that has failed has none, nor has one that the process has given up before it was answered.
 *
 * Of a connection that the process has dissolved (AF_UNSPEC) nothing is noted: tcp_disconnect has
 * cleared its time, and left ECONNRESET. One that has failed has another error, or none once the
 * process has read it.
 */
static __always_inline void bl_ewma_end(struct bpf_sock *ctx, const struct bl_sock_entry *sock)
{
	const struct bl_service_entry *service;
	struct sock *kernel_sk;
	__u32 rtt;

	if (likely(!(sock->member & BL_MEMBER_COUNTED)) || ctx->protocol != IPPROTO_TCP)
		return;
	service = bl_service_lookup(sock->service);
	if (!service || service->algorithm != BL_ALGORITHM_EWMA)
		return;
	kernel_sk = bl_source_sock(ctx);
	if (!kernel_sk)
		return;
	rtt = BPF_CORE_READ((struct tcp_sock *)kernel_sk, srtt_us);
	if (!rtt && ctx->state == BPF_TCP_CLOSE && BPF_CORE_READ(kernel_sk, sk_err) != ECONNRESET)
		rtt = BL_EWMA_MOST;
	if (rtt)
		bl_ewma_note(sock->backend.id, sock->backend.generation, rtt);
}
