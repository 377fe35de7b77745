# limit: 120
# What speculation, batches, chunks and a crash must not change (unit/test_lossless), once more and short, with activations in 8 bits.
"$B/tests/test_lossless" --activations int8 --limit 1 --tokens 16 || exit 1
