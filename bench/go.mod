// The benchmark is a module of its own, so that the libraries that it measures against stay out of the go.sum of Pawl's users.
module github.com/pawl-go/pawl/bench

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.11.0
	github.com/pawl-go/pawl v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/asynkron/protoactor-go v0.0.0-20240822202345-3c0e61ca19c9 // indirect
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.37.0 // indirect
	google.golang.org/adk/v2 v2.0.0 // indirect
)

replace github.com/pawl-go/pawl => ../
