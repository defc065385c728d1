package main

// architecture is what processors of one kind, their machines and their packages have of their own.
type architecture struct {
	name string // as Go and Debian say

	qemu        string // the program
	qemuPackage string
	machine     []string // its arguments
	// emulated is added to a processor that is emulated.
	emulated string
	console  string // the terminal of the kernel's messages
	results  string // that of the results, see [guest.ResultEnv]
	// resultArgs are the arguments of qemu by which what is written to it goes to a file.
	resultArgs func(file string) []string

	libraries string // where Debian's loader looks for libraries
	// loader is itself one of them, but programs name it by another path.
	loader, loaderPath string
}

var (
	amd64 = &architecture{
		name:        "amd64",
		qemu:        "qemu-system-x86_64",
		qemuPackage: "qemu-system-x86",
		// What a kernel copies and clears memory with: qemu emulates REP MOVSB byte by byte. Linux 6.1
		// copies all it knows about a program for each instruction that it puts into it, and took twice
		// as long to load one.
		emulated:   ",-erms,-fsrm",
		console:    "ttyS0",
		results:    "/dev/ttyS1",
		resultArgs: func(file string) []string { return []string{"-serial", "file:" + file} },
		libraries:  "lib/x86_64-linux-gnu",
		loader:     "ld-linux-x86-64.so.2",
		loaderPath: "/lib64/ld-linux-x86-64.so.2",
	}
	arm64 = &architecture{
		name:        "arm64",
		qemu:        "qemu-system-aarch64",
		qemuPackage: "qemu-system-arm",
		machine:     []string{"-machine", "virt"},
		console:     "ttyAMA0",
		results:     "/dev/ttyS0", // of a card, for the machine has one of its own
		resultArgs: func(file string) []string {
			return []string{"-chardev", "file,id=results,path=" + file, "-device", "pci-serial,chardev=results"}
		},
		libraries:  "lib/aarch64-linux-gnu",
		loader:     "ld-linux-aarch64.so.1",
		loaderPath: "/lib/ld-linux-aarch64.so.1",
	}
)
