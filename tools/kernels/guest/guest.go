// Package guest is what the host and the init process of a test kernel tell each
// other: the job in a file of the initramfs, the results over a serial line of
// their own, where neither kernel messages nor test output can garble them.
package guest

// JobPath is where init finds the [Job], as JSON.
const JobPath = "/job.json"

// ResultEnv is the variable in init's environment, which has what the kernel's command line gives
// it, that names the terminal of one JSON [Event] per line.
const ResultEnv = "RESULTS"

// Job is what init has to do.
type Job struct {
	// Modules are the paths of kernel modules, in the order to load them.
	Modules []string
	Tests   []Test
	// Args are given to every test binary, and Env is added to its environment.
	Args []string
	Env  []string
}

// Test is one test binary.
type Test struct {
	Package string // as the user named it
	Binary  string
	Dir     string // working directory, with the package's testdata
}

// Event is one message from init. One field is set.
type Event struct {
	// Started is the release of the running kernel.
	Started string `json:",omitempty"`
	// Failure says why init could not run the tests.
	Failure string  `json:",omitempty"`
	Result  *Result `json:",omitempty"`
	// Done is the last event: every test binary has been run.
	Done bool `json:",omitempty"`
}

// Result is how one test binary ended. The counts are of top-level tests.
type Result struct {
	Package string
	Passed  int
	Failed  int
	Skipped []string
	// Failure says how the binary failed; empty when it passed.
	Failure string
	Seconds float64
}
