// Package idempotency answers a repeated request with the first one's response: at the API edge, and for queue consumers and
// an agent's tool calls.
//
//	keys, err := idempotency.New(rt, idempotency.Config{Principal: userID})
//	mux.Handle("POST /orders", keys.Middleware(http.HandlerFunc(createOrder)))
//
// A client sends a key of its own making in the header Idempotency-Key, and the same key again when it repeats a request of which it does not know
// what became. The first request under a key runs; every later one gets the first one's response, marked by the header Idempotent-Replayed:
//
//	same key, same payload, the first has answered    its response again, a 4xx too
//	same key, same payload, the first still runs      409 with Retry-After, or, with Config.Wait, the response once it is there
//	same key, another payload                         422
//	no key, or one that cannot be                     400 (no key: only with Config.Require)
//	the first answered 5xx, panicked, or crashed      it runs again; after a crash, once the lease has run out
//
// Keys belong to a principal and a route: nobody gets another's response. Only the header counts; trace and correlation ids, which are the same
// for several requests that are meant to happen, are never looked at.
//
// # Once, whatever crashes
//
// A handler that crashes between its work and its response has worked, and nobody knows: its key is free after the lease, and the
// work is done again. A handler whose work is state of Pawl's can do better: [Respond] makes the response a part of the handler's
// transaction, and [DoTx] does the same for a function. Then both are there or neither, and no crash repeats anything.
//
// # What is kept
//
// A record is a document of kind "idempotency" in the runtime's store, under a hash of principal, route and key. It holds a hash of the request, and the response:
// status, body, and the headers that Config allows. It expires after Config.TTL, 24 hours by default. A [pawl.Sweeper] gives the space back.
//
// Close the server before the runtime: [pawl.Runtime.Close] ends the leases, and with them handlers that still run.
package idempotency
