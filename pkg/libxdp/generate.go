package libxdp

//go:generate go tool bpf2go -cc clang-19 -strip ../../tools/bpfstrip -target bpfel,bpfeb -tags linux dispatcher ../../bpf/dispatcher.bpf.c -- -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu -O2 -mcpu=v3 -Wall -Wextra -Werror
