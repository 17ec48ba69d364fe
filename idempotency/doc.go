// Package idempotency answers a repeated request with the response to the first one. It serves HTTP
// APIs, queue consumers and the tool calls of agents.
//
//	keys, err := idempotency.New(rt, idempotency.Config{Principal: userID})
//	mux.Handle("POST /orders", keys.Middleware(http.HandlerFunc(createOrder)))
//
// A client chooses a key and sends it in the header Idempotency-Key. It sends the same key again
// when it repeats a request whose outcome it does not know. The handler runs for the first request
// under a key. Every later request gets the stored response, marked by the header
// Idempotent-Replayed:
//
//	same key, same payload, first request answered    the stored response, also a 4xx
//	same key, same payload, first request running     409 with Retry-After; with Config.Wait the
//	                                                  response as soon as it is stored
//	same key, another payload                         422
//	no key, or an invalid key                         400 (no key: only with Config.Require)
//	first request answered 5xx, panicked or crashed   the handler runs again; after a crash, once
//	                                                  the lease has expired
//
// A key belongs to a principal and a route, so no client gets the response of another. Only this
// header is a key. Trace and correlation ids are never used as one: several requests that are all
// meant to happen share them.
//
// # Exactly once, despite crashes
//
// A handler that crashes after its work and before its response is stored leaves no trace of the
// work. Its key is free once the lease has expired, and the work is done again. A handler that
// works on Pawl's own state can avoid that: [Respond] makes the response a part of the handler's
// transaction, and [DoTx] does the same for a function. Both are committed or neither is, so a
// crash repeats nothing.
//
// # What is stored
//
// A record is a document of kind "idempotency" in the runtime's store. Its id is a hash of the
// principal, so that the records of one can be erased, and a hash of principal, route and key. It holds a hash of the request and the response: status, body, and the
// headers that Config allows. It expires after Config.TTL, 24 hours by default. A [pawl.Sweeper]
// removes expired records.
//
// Close the server before the runtime: [pawl.Runtime.Close] ends the leases, and with them the
// contexts of handlers that still run.
package idempotency
