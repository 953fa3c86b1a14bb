// Random updates of llama_kv_runs against the plain containers that it stands in for.
#include "llama-kv-cells.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

static void check(bool ok, const char * what, int step) {
    if (!ok) {
        fprintf(stderr, "step %d: %s\n", step, what);
        exit(1);
    }
}

int main() {
    for (int seed = 0; seed < 50; ++seed) {
        std::mt19937 rng(seed);

        llama_kv_runs runs;
        std::map<int64_t, int> plain;
        size_t n = 0;

        // few values make runs meet and split often, many leave holes
        const int range = 1 << (1 + seed % 8);

        for (int step = 0; step < 20000; ++step) {
            const int64_t v = (int64_t) (rng() % range) - range/4;

            switch (rng() % 4) {
                case 0:
                case 1: {
                    runs.inc(v);
                    plain[v]++;
                    n++;
                } break;
                case 2: {
                    if (plain.count(v)) {
                        runs.dec(v);
                        if (--plain[v] == 0) {
                            plain.erase(v);
                        }
                        n--;
                    }
                } break;
                case 3: {
                    // as many as are missing from v on
                    int64_t end = v;
                    while (end < v + range/2 && !plain.count(end)) {
                        plain[end++] = 1;
                    }
                    runs.inc_range(v, end);
                    n += end - v;
                } break;
            }

            check(runs.size()  == n,             "size",  step);
            check(runs.empty() == plain.empty(), "empty", step);

            if (!plain.empty()) {
                check(runs.min() == plain.begin()->first,  "min", step);
                check(runs.max() == plain.rbegin()->first, "max", step);
            }

            if (rng() % 1000 == 0) {
                runs.clear();
                plain.clear();
                n = 0;
            }
        }

        // taken out one by one, from either end, both go through the same values
        while (!plain.empty()) {
            const bool    first = rng() % 2;
            const int64_t v     = first ? plain.begin()->first : plain.rbegin()->first;

            check((first ? runs.min() : runs.max()) == v, "order", -1);

            runs.dec(v);
            if (--plain[v] == 0) {
                plain.erase(v);
            }
        }

        check(runs.empty() && runs.size() == 0, "empty in the end", -1);
    }

    printf("ok\n");
}
