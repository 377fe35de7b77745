# translate.pl FILE: CUDA C to the C++ that tests/emulator compiles: launches become calls with a lambda, dynamic shared memory a pointer.
# Everything else of the language (threadIdx, __shared__, warp functions) is emulator.h's matter.
use strict;
use warnings;

local $/;
my $file = shift @ARGV;
open(my $in, '<', $file) or die "$file: $!\n";
my $text = <$in>;
my $launches = () = $text =~ /<<</g;
my $n = 0;

# kernel<A, B><<<configuration>>>(arguments);
$text =~ s/((?:\w+::)*\w+(?:<[\w\s,:]*>)?)<<<(.*?)>>>\s*(\((?:[^()]++|(?3))*\));/$n++; "emu::launch(emu::config($2), [=]() { $1$3; });"/gse;
die "$file: $launches launches, $n understood\n" if $n != $launches;
$text =~ s/extern\s+__shared__\s+(?:__align__\(\d+\)\s+)?(\w+)\s+(\w+)\[\];/$1 *$2 = ($1 *)emu::dynamic_shared();/g;
die "$file: dynamic shared memory that was not understood\n" if $text =~ /extern\s+__shared__/;
print qq(#line 1 "$file"\n), $text;
