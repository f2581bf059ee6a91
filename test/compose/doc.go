// Package compose tests the cluster of docker-compose.yml from outside: its
// images, real clients, scaling, and what callers see when a part of it is
// killed. It needs docker with compose v2 and what `make compose-test`
// prepares, takes minutes, and leaves nothing behind but docker's build cache.
package compose
