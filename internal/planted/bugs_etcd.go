package main

// etcdBugs break persist/etcd.
var etcdBugs = []Bug{
	{
		Name: "etcd-no-answer-is-success", Mechanism: "a commit that etcd did not answer is not acknowledged",
		Proves: []string{"CAS-6"},
		File:   "persist/etcd/commit.go", Module: "persist/etcd/etcdtest",
		Old: "		return view{}, unknown(ctx, err)\n	case answer.Succeeded:\n",
		New: "		a.won = true\n		return view{}, nil\n	case answer.Succeeded:\n",
		Pkg: ".", Run: "^TestFaults$", Flags: []string{"-timeout=200s"},
	},
}
